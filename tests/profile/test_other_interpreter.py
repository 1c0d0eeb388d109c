"""A worker computes in the interpreter that its entry names, which lacks halfstep's packages."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import psutil
import pytest

from halfstep.params.schema import ModelParams, TaskParams, TrainParams, Variant
from halfstep.profile.records import ArmSettings, FirstStep
from halfstep.profile.worker_process import WorkerProcess
from halfstep.system import interpreters
from halfstep.tasks.trial import Trial
from tests.other_interpreter import other_interpreter


@pytest.mark.slow
def test_worker_computes_in_the_interpreter_of_its_entry(tmp_path: Path, folder: Path) -> None:
    other = other_interpreter(tmp_path / "venv")
    interpreter = interpreters.look(str(other))
    assert isinstance(interpreter, interpreters.Interpreter)
    there, here = (
        Trial(TaskParams(), ModelParams(), TrainParams(batch_size=8), Variant(policy="float32", python=python), seed=0)
        for python in (str(other), None)
    )
    with closing(WorkerProcess("other", there)) as worker:
        assert worker.call(ArmSettings, "settings").in_force.python == interpreters.shown_versions(interpreter.versions)
        assert psutil.Process(worker._process.pid).cmdline()[0] == str(other)
        worker.call(FirstStep, "warm_up", 1)
        assert worker.call(float, "train_round", 1) > 0
    with closing(WorkerProcess("float32", here)) as worker:
        assert worker.call(ArmSettings, "settings").in_force.python is None
