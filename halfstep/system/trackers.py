"""Keeps what a script logs by itself away from every tracking store: each of its runs here would log again.

Runs of a script end inside `fit`, so that theirs would stay RUNNING: in halfstep's store, or in that of the user. The
libraries are met where they are imported, by whatever module. Imports the standard library alone.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

# Each library says so in its documentation.
_OFF = {
    "WANDB_MODE": "disabled",
    "CLEARML_OFFLINE_MODE": "1",
    "NEPTUNE_MODE": "debug",
    "COMET_AUTO_LOG_DISABLE": "1",
    "DVCLIVE_TEST": "1",  # it writes to a temporary folder, and makes no experiment of DVC
}
_STORE = "MLFLOW_TRACKING_URI"
_MLFLOW = "mlflow"
_LIBRARIES = {
    _MLFLOW: "MLflow",
    "wandb": "Weights & Biases",
    "clearml": "ClearML",
    "neptune": "Neptune",
    "comet_ml": "Comet",
    "dvclive": "DVCLive",
}
_folders: list[str] = []


class _Finder(importlib.abc.MetaPathFinder):
    """Notes which of the libraries are imported, and silences MLflow, which no variable does."""

    def __init__(self) -> None:
        self.met: dict[str, None] = {}

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """As the next finder says."""
        if name not in _LIBRARIES:
            return None
        self.met[_LIBRARIES[name]] = None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if name == _MLFLOW and spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def run_and_silence(module: ModuleType) -> None:
                run(module)
                _silence(module)

            setattr(spec.loader, "exec_module", run_and_silence)  # noqa: B010  it is a method
        return spec


@contextmanager
def silenced() -> Iterator[dict[str, None]]:
    """In the block a script may log: to MLflow into a store in the temporary folder, and so afterwards.

    The other libraries stay silent for as long as the process runs: callbacks may start them in `fit`.

    Yields:
        Names of the libraries that are imported in the block; of MLflow also if it is used there.
    """
    before = os.environ.get(_STORE)
    _folders.append(tempfile.mkdtemp(prefix="halfstep-mlflow-"))
    os.environ.update({**_OFF, _STORE: f"sqlite:///{_folders[-1]}/mlflow.db"})
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    try:
        if _MLFLOW in sys.modules:  # halfstep's own import
            _silence(sys.modules[_MLFLOW])
        yield finder.met
    finally:
        sys.meta_path.remove(finder)
        if os.path.exists(f"{_folders[-1]}/mlflow.db"):  # noqa: PTH110  it had been imported before
            finder.met[_LIBRARIES[_MLFLOW]] = None
        if before is None:
            os.environ.pop(_STORE, None)
        else:
            os.environ[_STORE] = before


def remove() -> None:
    """Removes what was logged."""
    while _folders:
        shutil.rmtree(_folders.pop(), ignore_errors=True)


def _silence(mlflow: Any) -> None:
    """Keeps a script's own store out, and what would log each step of each turn."""
    from mlflow.tracking._tracking_service import utils

    mlflow.set_tracking_uri(os.environ[_STORE])

    def ignored(*_: Any, **__: Any) -> None:
        """Does nothing."""

    for module in (mlflow, mlflow.tracking, utils):
        setattr(module, "set_tracking_uri", ignored)  # noqa: B010  it is a module
    for module in (mlflow, mlflow.tensorflow, mlflow.keras):
        setattr(module, "autolog", ignored)  # noqa: B010  the same
