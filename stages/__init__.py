"""halfstep: is lower precision faster on this machine, at the same accuracy, and why?

Each sub-package is one stage of the pipeline in `dvc.yaml`, or a room that several stages share.
"""

import os

# These are read once, when the libraries are first imported: so they are set before anything below can import them.
os.environ["KERAS_BACKEND"] = "tensorflow"  # the profiler, tf.data and LossScaleOptimizer are TensorFlow's
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # errors only: the information lines bury what a user must read
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")  # MLflow complains at length where git is not installed
