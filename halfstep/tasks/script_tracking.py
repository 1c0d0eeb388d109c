"""Keeps what a script logs by itself away from every tracking store: each of its runs here would log again.

Runs of a script end inside `fit`, so that theirs would stay RUNNING: in halfstep's store, or in that of the user.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# Each library says so in its documentation.
OFF = {"WANDB_MODE": "disabled", "CLEARML_OFFLINE_MODE": "1", "NEPTUNE_MODE": "debug"}
STORE = "MLFLOW_TRACKING_URI"
_LIBRARIES = {
    "mlflow": "MLflow",
    "wandb": "Weights & Biases",
    "clearml": "ClearML",
    "neptune": "Neptune",
}
_MOST_FOLDERS = 200  # in that of the script


def libraries_of(path: Path, folder: Path) -> list[str]:
    """The tracking libraries that a script, or a file of its folder, imports."""
    imported: set[bytes] = set()
    for file in {path, *_sources(folder)}:
        for names in re.findall(rb"^\s*(?:import|from)\s+([\w., ]+)", file.read_bytes(), re.MULTILINE):
            imported |= set(re.findall(rb"\w+", names))
    return [shown for name, shown in _LIBRARIES.items() if name.encode() in imported]


def _sources(folder: Path) -> Iterator[Path]:
    """Yields the Python files of a folder; only some of a folder with many subfolders, such as pictures."""
    for number, (place, folders, files) in enumerate(os.walk(folder)):
        if number == _MOST_FOLDERS:
            return
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name != "site-packages")
        yield from (Path(place, name) for name in files if name.endswith(".py"))


@contextmanager
def apart(libraries: list[str]) -> Iterator[None]:
    """In the block a script may log: to MLflow into a store in the temporary folder, and so afterwards."""
    before = {name: os.environ.get(name) for name in (*OFF, STORE)}
    os.environ.update(OFF)
    try:
        if "MLflow" in libraries:
            _throw_away()
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def remove() -> None:
    """Removes what was logged."""
    while _folders:
        shutil.rmtree(_folders.pop(), ignore_errors=True)


_folders: list[str] = []


def _throw_away() -> None:
    import mlflow
    from mlflow.tracking._tracking_service import utils

    from halfstep.tracking.client import connect

    folder = tempfile.mkdtemp(prefix="halfstep-mlflow-")
    _folders.append(folder)
    uri = f"sqlite:///{folder}/mlflow.db"
    connect(uri)
    mlflow.set_tracking_uri(uri)

    def ignored(*_: Any, **__: Any) -> None:
        """A script's own store, and what would log each step of each turn."""

    for module in (mlflow, mlflow.tracking, utils):
        setattr(module, "set_tracking_uri", ignored)  # noqa: B010  it is a module
    for module in (mlflow, mlflow.tensorflow, mlflow.keras):
        setattr(module, "autolog", ignored)  # noqa: B010  the same
