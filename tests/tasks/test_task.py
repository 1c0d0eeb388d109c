"""What is wrong with a `Task`."""

from __future__ import annotations

from typing import Any

import pytest

from halfstep.tasks import Task
from halfstep.tasks.task import problems


def task(**changes: Any) -> Task:
    values: dict[str, Any] = {"model": None, "compile": {}, "train": None, "test": None, "score_name": "accuracy"}
    return Task(**(values | {"score": max} | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"score": None}, "Task has neither score nor metric; give one of them"),
        ({"metric": max}, "Task has both score and metric; give one of them"),
        ({"score": 1.0}, "Task.score is float; it must be a function"),
        ({"score_name": "a b"}, "Task.score_name is 'a b'; it must have letters"),
        ({"score_name": None}, "Task.score_name is None; it must have letters"),
        (
            {"score_name": "val_loss"},
            "'loss' is better when it is lower: return its negative",
        ),
        ({"score_name": "mae"}, "name it 'neg_mae'"),
        ({"compile": []}, "Task.compile is list; it must be a dict"),
        ({"compile": {"jit_compile": True}}, "Task.compile contains jit_compile; remove it"),
    ],
)
def test_task_that_cannot_be_used(changes: dict[str, Any], message: str) -> None:
    assert any(message in problem for problem in problems(task(**changes), speed_only=False))


@pytest.mark.parametrize("name", ["accuracy", "neg_mae", "negative_loss", "lossless", "iou", "auc"])
def test_allowed_names(name: str) -> None:
    assert task(score_name=name).score_name == name
