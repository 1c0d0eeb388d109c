"""Imports of large libraries without Python's garbage collector.

An import makes hundreds of thousands of objects that stay. The collector would look at them again and again: that is a
third of the time in which TensorFlow and MLflow are imported, and a second at the end of the process.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quick_imports() -> Iterator[None]:
    """In the block, the garbage collector does not run. Afterwards it ignores every object that exists by then.

    For imports alone: a model or an array in a cycle of references that exists by then would never be freed.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.freeze()
            gc.enable()
