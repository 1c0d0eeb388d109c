"""`task.json`: written and read, and names of scores that cannot be used."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from halfstep.errors import CorruptFileError
from halfstep.results.task import TaskInfo, images_task


def test_task_is_read_as_it_was_written(tmp_path: Path) -> None:
    task = TaskInfo(name="mine:build", score_name="mean_iou", score_kind="metric", examples=500)
    task.write(tmp_path / "task.json")
    assert TaskInfo.read(tmp_path / "task.json") == task
    assert not task.has_classes
    assert task.examples_word == "examples"


def test_task_of_images() -> None:
    task = images_task(539)
    assert task.has_classes
    assert task.examples_word == "images"
    assert (task.name, task.score_name, task.score_kind, task.examples) == ("images", "accuracy", "score", 539)


@pytest.mark.parametrize(
    "change", [{"score_name": "two words"}, {"score_name": ""}, {"score_kind": "x"}, {"examples": 0}]
)
def test_task_that_makes_no_sense_is_refused(change: dict[str, object], tmp_path: Path) -> None:
    with pytest.raises(ValidationError):
        TaskInfo.model_validate(images_task(3).model_dump() | change)
    path = tmp_path / "task.json"
    images_task(3).write(path)
    path.write_text(path.read_text().replace('"images"', "7"))
    with pytest.raises(CorruptFileError):
        TaskInfo.read(path)
