"""Imports TensorFlow without the lines that its libraries print, which bury what a user must read.

Import this module before TensorFlow. What was held back is shown after all where the import fails, and where a GPU's
driver is there but TensorFlow finds no device: then those lines say why.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO


@contextmanager
def held_back() -> Iterator[BinaryIO]:
    """Holds back what is written to standard error by C++ code too; yields the file that it goes to.

    An exception shows what was held back.
    """
    sys.stderr.flush()
    original = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield held
        except BaseException:
            os.dup2(original, 2)
            held.seek(0)
            sys.stderr.buffer.write(held.read())
            raise
        finally:
            sys.stderr.flush()
            os.dup2(original, 2)
            os.close(original)


with held_back():
    import keras  # noqa: F401
    import tensorflow  # noqa: F401
