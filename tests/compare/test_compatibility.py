"""Variants that must not be compared are named, with what differs and the command to run."""

from __future__ import annotations

import pytest

from halfstep.compare.compatibility import check_initial_weights, check_profiles, check_trainings
from halfstep.errors import ComparisonError
from tests.small_study import BRIDGE, CONFIGURATION, SmallStudy


@pytest.mark.parametrize("name", ["mixed_bfloat16", "_control", BRIDGE])
def test_profile_of_another_configuration_is_rejected(project: SmallStudy, name: str) -> None:
    project.edit_profile(name, configuration=CONFIGURATION.model_copy(update={"optimizer": "sgd"}))
    with pytest.raises(ComparisonError) as raised:
        check_profiles(project.load())
    assert str(raised.value) == (
        f"data/profile/{name}: '{name}' was not measured like 'float32' (optimizer sgd instead of adam): "
        "run `dvc repro -f -s profile && dvc repro`"
    )


@pytest.mark.parametrize(
    ("key", "value", "difference"),
    [
        ("data_sha256", "e" * 64, f"data {'e' * 12} instead of {'d' * 12}"),
        ("batch_size", 64, "batch size 64 instead of 32"),
        ("environment", "other", "environment other instead of Test CPU 9000; tensorflow 2.21.0"),
    ],
)
def test_training_under_other_conditions_is_rejected(
    project: SmallStudy, key: str, value: object, difference: str
) -> None:
    project.edit_training("mixed_bfloat16", 3, **{key: value})
    with pytest.raises(ComparisonError) as raised:
        check_trainings(project.load())
    assert str(raised.value) == (
        "data/train/mixed_bfloat16-3: 'mixed_bfloat16', seed 3, was not trained like 'float32', seed 1 "
        f"({difference}): run `dvc repro -f -s train@mixed_bfloat16-3`, then `dvc repro`"
    )


def test_comparison_checks_both(project: SmallStudy) -> None:
    project.edit_profile("_control", configuration=CONFIGURATION.model_copy(update={"op_determinism": True}))
    with pytest.raises(ComparisonError, match="op_determinism True instead of False"):
        project.compare()
    project.edit_training("mixed_float16", 1, batch_size=64)
    with pytest.raises(ComparisonError, match="'mixed_float16', seed 1, was not trained like"):
        project.compare()


def test_failed_training_is_not_checked(project: SmallStudy) -> None:
    project.edit_training("float16", 1, data_sha256="e" * 64)
    check_trainings(project.load())


def test_nothing_is_checked_against_a_failed_baseline(project: SmallStudy) -> None:
    project.edit_training("float32", 1, status="failed", reason="the loss is inf", batch_size=64)
    project.compare()


@pytest.mark.parametrize(
    ("weights", "is_other"),
    [("0.1 -0.2", False), ("0.10001 -0.2", False), ("0.11 -0.2", True), ("0.1 -0.2 0", True), ("nan -0.2", True)],
)
def test_variants_that_began_with_other_weights_are_named(project: SmallStudy, weights: str, is_other: bool) -> None:
    for name in ("float32", "mixed_float16"):
        project.edit_training(name, 1, initial_weights="0.1 -0.2")
    project.edit_training("mixed_bfloat16", 1, initial_weights=weights)
    project.edit_training("mixed_bfloat16", 3, initial_weights="5 5")  # of another seed
    if is_other:
        with pytest.raises(ComparisonError, match="'float32' and 'mixed_bfloat16', seed 1, began with other initial"):
            check_initial_weights(project.load())
    else:
        check_initial_weights(project.load())
