"""How long the trainings take, by the step that `prepare` has tried."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from halfstep.params.schema import Params, TrainParams
from halfstep.results.task import ScriptInfo, StepTime, TaskInfo, long_trainings_s, step_time_file
from halfstep.system import files


def settings_of(**train: Any) -> Params:
    """Parameters with these of the trainings, whose batches are the script's."""
    return Params(train=TrainParams(**train | {"batch_size": None}))


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    """A script of 2,000 epochs of 50 steps, of which each took a hundredth of a second."""
    info = TaskInfo(
        name="train.py",
        score_name="accuracy",
        score_kind="score",
        examples=100,
        steps_per_epoch=50,
        script=ScriptInfo(line=1, epochs=2000, batch_size=16),
        left_out={"mixed_float16": "it fails"},
    )
    folder = tmp_path / files.PREPARED
    folder.mkdir(parents=True)
    info.write(folder / "task.json")
    files.write_manifest(folder)
    StepTime(seconds=0.01).write(step_time_file(folder, tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("epochs", "seeds", "expected"),
    [(None, (0,), 2000.0), (None, (0, 1), 4000.0), (700, (0,), 700.0), (600, (0,), None), (0, (0,), None)],
)
def test_trainings_take_as_long_as_their_steps(
    epochs: int | None, seeds: tuple[int, ...], expected: float | None, prepared: Path
) -> None:
    """Of three variants one is left out; what takes ten minutes at most is not long."""
    settings = settings_of(epochs=epochs, seeds=seeds)
    assert long_trainings_s(settings, prepared) == (None if expected is None else pytest.approx(expected))


def test_other_prepared_data_have_another_step_time(prepared: Path) -> None:
    (prepared / files.PREPARED / "examples.npy").write_bytes(b"others")
    files.write_manifest(prepared / files.PREPARED)
    assert long_trainings_s(settings_of(epochs=None), prepared) is None
