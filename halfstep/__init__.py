"""halfstep: is lower precision faster on this machine, at the same accuracy, and why?

Each sub-package is a domain. The pages in `stages/`, which dvc.yaml runs, call them.
"""

import atexit
import os
import signal
import sys
import warnings


def _end_at_once(*_: object) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process above forwards the same Ctrl-C
    os.write(2, b"interrupted\n")
    os._exit(128 + signal.SIGINT)


# Whether this is imported because `python -m` runs a program of halfstep. `-m` is its name until it is found; the pages
# in `stages/` are in no package that would be imported before.
_IS_PROGRAM = sys.argv[:1] == ["-m"] or getattr(sys.modules["__main__"].__spec__, "name", "").startswith("stages.")

# While its modules are imported, nothing has to be cleaned up. An exception could be lost in a C extension, or become a
# long traceback. `cli.cli_entry` handles Ctrl-C from then on.
if _IS_PROGRAM and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, _end_at_once)
    atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)  # the result is complete, the status is known

_OLDEST_PYTHON = (3, 11)
_PACKAGES = (
    *(
        "click",
        "cloudpickle",
        "dvc_data",
        "dvc_objects",
        "filelock",
        "google",
        "jinja2",
        "mlflow",
        "numpy",
    ),
    *("pandas", "PIL", "psutil", "pydantic", "pynvml", "rich", "ruamel", "scipy", "sklearn", "sqlalchemy"),
    *("tensorboard", "xprof", "yaml"),
)


def _problem_with_python() -> str:
    """Why the running Python cannot run halfstep; empty if it can. An old Python must be able to read it."""
    import importlib.util  # after the handler of Ctrl-C is installed, because it takes milliseconds

    if sys.version_info < _OLDEST_PYTHON:
        return "has version %d.%d, and halfstep needs 3.11 or newer" % sys.version_info[:2]  # noqa: UP031
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    others = f" and {len(missing) - 1} other packages" if missing[1:] else ""
    return f"does not have {missing[0]}{others} that halfstep needs" if missing else ""


# DVC starts `python`, which need not be the Python that runs DVC.
if _IS_PROGRAM and _problem_with_python():
    sys.exit(
        f"python is {sys.executable!r}, which {_problem_with_python()}: activate the environment of halfstep "
        "(`. .venv/bin/activate`), or install requirements.txt in it, then run the same command again"
    )

if sys.argv[:1] == ["-m"] and os.path.expanduser("~") == "~":  # noqa: PTH111  # pathlib takes time
    sys.exit(f"HOME is not set, and user {os.getuid()} has no home folder: set HOME to a folder that it may write to")

# Libraries read these variables once, when they are first imported, so they are set before any of them.
os.environ["KERAS_BACKEND"] = "tensorflow"  # the profiler, tf.data and LossScaleOptimizer belong to TensorFlow
os.environ["TF_USE_LEGACY_KERAS"] = "0"  # 1 would replace Keras 3 within TensorFlow
if "ipykernel" not in sys.modules:  # a notebook shows its figures
    os.environ["MPLBACKEND"] = "agg"  # figures are files
if os.environ.pop("PYTHONWARNINGS", None) is not None:  # `error` would end the import of a library
    warnings.resetwarnings()
    sys.warnoptions.clear()
    warnings.simplefilter("ignore", DeprecationWarning)
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # errors only: information lines hide what a user must read
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")  # without git, MLflow prints a long warning
_NARROWEST = 20  # columns; in fewer, a table has no text, and in 0 nothing is printed at all
if os.environ.get("COLUMNS", "").isdecimal() and int(os.environ["COLUMNS"]) < _NARROWEST:
    del os.environ["COLUMNS"]


def __getattr__(name):  # type: ignore[no-untyped-def]  # an old Python must be able to read it
    """`halfstep.judge`, without what it imports until it is asked for."""
    if name == "judge":
        import importlib

        return importlib.import_module("halfstep.calling").judge
    raise AttributeError("module %r has no attribute %r" % (__name__, name))  # noqa: UP031
