"""The time until an accuracy that all trainings reach."""

from __future__ import annotations

import pandas as pd
import pytest

from halfstep.compare.study import VariantResult
from halfstep.compare.training_curves import time_to_score
from halfstep.results.training import Training
from tests.small_study import training_metrics

NAN = float("nan")


def _training(seed: int, accuracies: list[float], seconds: list[float], **metrics: str) -> Training:
    history = pd.DataFrame({"val_accuracy": accuracies, "epoch_time_s": seconds})
    return Training(seed, training_metrics(**metrics), history)


def _variant(name: str, *trainings: Training) -> VariantResult:
    return VariantResult(name, trainings, None)


def test_target_is_the_best_accuracy_that_all_trainings_reach() -> None:
    times = time_to_score(
        [
            _variant("float32", _training(0, [0.5, 0.9, 0.8], [3, 1, 1]), _training(1, [0.7, 0.7, 0.95], [3, 1, 1])),
            _variant("half", _training(0, [0.6, 0.99, 0.9], [2, 0.5, 0.5]), _training(1, [0.9] * 3, [2, 0.5, 0.5])),
        ],
        "accuracy",
    )
    assert times is not None
    assert times.target == 0.9
    assert times.seconds == {"float32": (4.0, 5.0), "half": (2.5, 2.0)}
    assert times.means_s == pytest.approx({"float32": 4.5, "half": 2.25})


def test_failed_variant_is_left_out_and_does_not_lower_the_target() -> None:
    failed = _variant("half", _training(0, [0.1], [1], status="failed", reason="the loss is nan"))
    times = time_to_score([_variant("float32", _training(0, [0.5, 0.9], [1, 1])), failed], "accuracy")
    assert times is not None
    assert times.target == 0.9
    assert times.means_s == {"float32": 2.0}


@pytest.mark.parametrize("accuracies", [[NAN], [0.9, NAN], [NAN, 0.9]])
def test_training_without_accuracy_gives_no_target(accuracies: list[float]) -> None:
    trainings = (_training(seed, [accuracy], [1.0]) for seed, accuracy in enumerate(accuracies))
    assert time_to_score([_variant("float32", *trainings)], "accuracy") is None


def test_score_that_is_not_computed_by_epoch_gives_no_target() -> None:
    trainings = [_variant("float32", _training(0, [0.5, 0.9], [1, 1]))]
    assert time_to_score(trainings, "accuracy") is not None
    assert time_to_score(trainings, "iou") is None
