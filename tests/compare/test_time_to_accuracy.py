"""Seconds until an accuracy that all reach."""

from __future__ import annotations

import pandas as pd
import pytest

from stages.compare.arms import Arm, Training
from stages.compare.time_to_accuracy import time_to_accuracy


def _training(seed: int, accuracies: list[float], seconds: list[float] | None = None) -> Training:
    table = pd.DataFrame({"epoch": range(len(accuracies)), "accuracy": accuracies, "val_accuracy": accuracies})
    return Training(seed, {"status": "finished"}, table if seconds is None else table.assign(epoch_time_s=seconds))


def _arm(variant: str, *trainings: Training) -> Arm:
    return Arm(variant, trainings, None)


def test_the_target_is_the_best_that_every_training_reaches() -> None:
    found = time_to_accuracy(
        [
            _arm("float32", _training(0, [0.5, 0.9, 0.8], [3, 1, 1]), _training(1, [0.7, 0.7, 0.95], [3, 1, 1])),
            _arm("half", _training(0, [0.6, 0.99, 0.9], [2, 0.5, 0.5]), _training(1, [0.9, 0.9, 0.9], [2, 0.5, 0.5])),
        ]
    )
    assert found is not None
    assert found.target == 0.9
    assert found.seconds == {"float32": (4.0, 5.0), "half": (2.5, 2.0)}
    assert found.mean_s("half") == pytest.approx(2.25)


def test_an_arm_that_failed_is_left_out_and_does_not_lower_the_target() -> None:
    failed = _arm("half", Training(0, {"status": "failed"}, _training(0, [0.1], [1]).history))
    found = time_to_accuracy([_arm("float32", _training(0, [0.5, 0.9], [1, 1])), failed])
    assert found is not None
    assert (found.target, list(found.seconds)) == (0.9, ["float32"])
    assert found.mean_s("half") is None


@pytest.mark.parametrize("training", [_training(0, [0.5]), _training(0, [float("nan")], [1.0])])
def test_nothing_is_told_without_times_or_accuracies(training: Training) -> None:
    assert time_to_accuracy([_arm("float32", training)]) is None
