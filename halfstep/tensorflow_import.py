"""The only module that imports TensorFlow and Keras.

Their libraries print dozens of lines at import, which would hide the stages' own messages. These lines are captured and
printed only if the import fails. Import both from here: `from halfstep.tensorflow_import import keras, tf`.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from halfstep.errors import HalfstepError
from halfstep.system.imports import quick_imports


@contextmanager
def captured_stderr() -> Iterator[BinaryIO]:
    """Redirects standard error, including that of C++ code, to a temporary file, and yields the file.

    If the block raises an exception, the captured text is printed.
    """
    sys.stderr.flush()
    original = os.dup(2)
    with tempfile.TemporaryFile() as captured:
        os.dup2(captured.fileno(), 2)
        try:
            yield captured
        except BaseException:
            os.dup2(original, 2)
            captured.seek(0)
            sys.stderr.buffer.write(captured.read())
            raise
        finally:
            sys.stderr.flush()
            os.dup2(original, 2)
            os.close(original)


try:
    with captured_stderr(), quick_imports():
        import keras
        import tensorflow as tf

        # The following have no public names. `global_state` has the dtype policy, `seed_generator` the seeds that a
        # script does not give, `data_adapters` make the batches of `fit`, and `reset_uids` numbers layers from 1 again.
        from keras.src.backend.common import global_state
        from keras.src.random import seed_generator
        from keras.src.trainers import data_adapters
        from keras.src.trainers.data_adapters.array_slicing import train_validation_split
        from keras.src.utils import rng_utils
        from keras.src.utils.naming import reset_uids
        from tensorflow.python.eager.context import context as eager_context
        from tensorflow.python.eager.context import global_seed as tensorflow_seed
        from tensorflow.python.framework.config import is_op_determinism_enabled
        from tensorflow.python.util._pywrap_util_port import IsMklEnabled as is_onednn_enabled  # noqa: N813
except (ImportError, MemoryError) as error:  # a library that does not fit in the memory is an ImportError
    raise HalfstepError(
        f"TensorFlow cannot be imported ({(str(error).splitlines() or ['not enough memory'])[-1]}): allow this process "
        "4 GB of memory (`ulimit -v unlimited`), or install requirements.txt again"
    ) from error

keras_seed = getattr(rng_utils, "get_random_seed", lambda: None)  # older releases of Keras keep none

# Keras has read them of the user's `keras.json`; results must not depend on that file.
keras.config.set_floatx("float32")
keras.config.set_epsilon(1e-7)
keras.config.set_image_data_format("channels_last")

__all__ = [
    "captured_stderr",
    "data_adapters",
    "eager_context",
    "global_state",
    "is_onednn_enabled",
    "is_op_determinism_enabled",
    "keras",
    "keras_seed",
    "reset_uids",
    "seed_generator",
    "tensorflow_seed",
    "tf",
    "train_validation_split",
]
