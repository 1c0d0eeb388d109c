"""A worker computes in the interpreter that its entry names, which lacks what halfstep lends it."""

from __future__ import annotations

import site
import venv
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from halfstep import interpreters
from halfstep.params import ModelParams, TaskParams, TrainParams, Variant
from halfstep.profile.records import ArmConfig
from halfstep.profile.worker_process import WorkerProcess
from halfstep.tasks.spec import TaskSpec


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """An interpreter of another environment, which has TensorFlow and none of the packages that are lent."""
    venv.create(tmp_path / "venv", symlinks=True)
    (packages,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    for entry in Path(site.getsitepackages()[0]).iterdir():
        name = entry.name.partition(".")[0].partition("-")[0]
        if name not in interpreters._LENT and entry.suffix != ".pth" and not name.startswith("__editable__"):
            (packages / entry.name).symlink_to(entry)
    return tmp_path / "venv" / "bin" / "python"


def test_worker_computes_in_the_interpreter_of_its_entry(other: Path, folder: Path) -> None:
    found = interpreters.look(str(other))
    assert isinstance(found, interpreters.Interpreter)
    assert set(found.missing) == set(interpreters._LENT)
    spec = TaskSpec(TaskParams(), ModelParams(), TrainParams(batch_size=8))
    there, here = (Variant(policy="float32", python=python) for python in (str(other), None))
    with closing(WorkerProcess("other", ArmConfig(spec, there, seed=0))) as worker:
        assert worker.call("settings").in_force.python == interpreters.shown_versions(found.versions)
        assert psutil.Process(worker._process.pid).cmdline()[0] == str(other)
        worker.call("warm_up", 1)
        assert worker.call("train_round", 1) > 0
    with closing(WorkerProcess("float32", ArmConfig(spec, here, seed=0))) as worker:
        assert worker.call("settings").in_force.python is None
