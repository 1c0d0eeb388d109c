"""halfstep: is lower precision faster on this machine, at the same accuracy, and why?

Each sub-package is a stage of the pipeline in `dvc.yaml`, or a library that several stages share.
"""

import atexit
import os
import signal
import sys

# Libraries read these variables once, when they are first imported, so they are set before any of them.
os.environ["KERAS_BACKEND"] = "tensorflow"  # the profiler, tf.data and LossScaleOptimizer belong to TensorFlow
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # errors only: information lines hide what a user must read
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")  # without git, MLflow prints a long warning


def _end_at_once(*_: object) -> None:
    os.write(2, b"interrupted\n")
    os._exit(128 + signal.SIGINT)


# While `python -m stages...` imports its modules, nothing has to be cleaned up. An exception could be lost in a C
# extension, or become a long traceback. `errors.cli_entry` handles Ctrl-C from then on.
if sys.argv[:1] == ["-m"] and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, _end_at_once)
    atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)  # the result is complete, the status is known
