"""The sentences that say how an inconclusive verdict can be settled."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from pydantic import ValidationError

from halfstep import files
from halfstep.compare.case import Judging
from halfstep.compare.next_steps import MOST_PROCESSES, next_steps
from halfstep.compare.words import verdict_sentence
from halfstep.params.schema import ProfileParams
from halfstep.stats.sample_size import times_as_long
from tests.small_study import BRIDGE, PROTOCOL, SmallStudy, given


def _spread(project: SmallStudy, by: float) -> None:
    """Spreads mixed_bfloat16's times of training over the processes. So far the stage took one minute."""
    project.spread_processes("mixed_bfloat16", "rounds.csv", by)
    project.edit_profile("float32", protocol=PROTOCOL.model_copy(update={"target_precision": 0.02}))


def _training_only(comparison: Judging) -> Judging:
    """The comparison with the second candidate's training alone."""
    second = comparison.cases[1]
    tests = {"train": second.tests["train"]}
    speedups = {"train": second.speedups["train"]}
    alone = given(second, speedups=speedups, verdicts={"train": second.verdict}, tests=tests, reasons=second.reasons)
    return given(comparison, cases=(alone,))


def test_decided_verdict_needs_nothing(comparison: Judging) -> None:
    for candidate in comparison.cases[:2]:
        assert tuple(next_steps(candidate)) == ()


def test_open_speedup_names_minutes_and_parameters(project: SmallStudy) -> None:
    _spread(project, 1.08)
    comparison = _training_only(project.compare(min_speedup=1.5))
    cost, how = next_steps(comparison.cases[0])
    ratio = comparison.cases[0].speedups["train"]
    needed = times_as_long(ratio, 1.5)
    assert needed is not None
    times = math.ceil(needed)
    assert times > 2
    so_far = f"{ratio.ratio:.2f}×, anywhere from {ratio.low:.2f}× to {ratio.high:.2f}×"
    minutes = f"about {times} times as long (about {times} min)"  # so far it took one minute
    assert cost == f"Training step: {so_far}. Measuring {minutes} would probably settle it."
    changes = f"profile.processes to {4 * times}, profile.max_seconds to about {30 * times}"
    assert how.startswith(f"To measure that long, set {changes} and profile.target_precision to 0.0")


def test_speedup_at_the_threshold_cannot_be_settled(project: SmallStudy) -> None:
    comparison = project.compare(min_speedup=1.595)
    (sentence,) = next_steps(comparison.cases[1])
    assert sentence.startswith(
        "Training step, 1.60× (1.55 to 1.65); inference, batch 1, 1.60× (1.55 to 1.65); inference,"
    )
    assert "too close to 1.595× to decide here, even by 10 runs" in sentence


def test_speedup_that_is_shown_by_itself_is_not_called_open(project: SmallStudy) -> None:
    low = project.compare().cases[1].speedups["train"].low
    comparison = project.compare(min_speedup=low - 1e-6)
    assert comparison.cases[1].verdict == "inconclusive"
    cost, *_ = next_steps(comparison.cases[1])
    assert "× alone, but not together with the other verdicts after one run" in cost
    assert "A longer run cannot settle it" in cost
    assert "reject" not in cost


def test_ratio_that_only_runs_leave_open_asks_for_another_occasion(project: SmallStudy) -> None:
    """The repeats of this run agree, so `profile` would end it as early as before, whatever is asked for."""
    project.scale_times("mixed_bfloat16", "rounds.csv", 1.6 / 1.07)
    comparison = _training_only(project.compare(min_speedup=1.05))
    candidate = comparison.cases[0]
    speedup = candidate.speedups["train"]
    agreeing = replace(speedup, by_process=tuple(replace(speedup.by_process[0]) for _ in range(4)))
    assert agreeing.within_run.low > 1.05 > agreeing.low
    (sentence,) = next_steps(given(candidate, speedups={"train": agreeing}))
    assert "anywhere from 1.05× to 1.12× after one run" in sentence
    assert sentence.endswith(
        "Set profile.occasion to another word and run `dvc repro`: the runs so far are kept, and the verdict is on "
        "all of them."
    )


def test_most_processes_are_those_that_the_parameter_allows() -> None:
    assert ProfileParams(processes=MOST_PROCESSES).processes == MOST_PROCESSES
    with pytest.raises(ValidationError):
        ProfileParams(processes=MOST_PROCESSES + 1)


def test_open_factor_of_the_precision_is_named(project: SmallStudy) -> None:
    project.scale_times(BRIDGE, "rounds.csv", 0.8 / 1.34)
    project.scale_times("mixed_float16", "rounds.csv", 0.25 / (1.34 * 1.07))
    project.spread_processes("mixed_float16", "rounds.csv", 1.02)
    comparison = project.compare()
    sentences = tuple(next_steps(comparison.cases[0]))
    assert [text for text in sentences if text.startswith("Training step, what the precision itself brings")] != []


def test_void_measures_are_measured_again(comparison: Judging) -> None:
    void = given(comparison, differing=frozenset({"train", "inference_b1"}))
    assert tuple(next_steps(void.cases[1])) == (
        "The two copies of float32 differ by more than noise in training and inference at batch size 1: stop other "
        "programs, then measure again: `dvc repro -f -s profile && dvc repro`.",
    )


def test_open_quality_names_test_images_of_trainings_and_of_the_same_weights(project: SmallStudy) -> None:
    comparison = project.compare(quality_margin=0.003)
    of_training, of_weights = next_steps(comparison.cases[1])
    assert of_training.startswith("Accuracy changes by −0.25 points (−0.58 to +0.08): the loss may be more than 0.3")
    assert "times as many train.seeds, would settle it." in of_training
    assert of_weights.startswith("Accuracy with the weights of float32 in mixed_bfloat16, for inference, changes by ")


def test_quality_that_is_shown_by_itself_is_not_called_open(project: SmallStudy) -> None:
    comparison = project.compare(quality_margin=0.0059)
    (sentence,) = next_steps(comparison.cases[1])
    assert (
        "alone this shows a loss of at most 0.59 percentage points, but not together with the other verdicts"
        in sentence
    )


def test_margin_that_can_never_be_shown_is_named_once(project: SmallStudy) -> None:
    comparison = project.compare(quality_margin=0.002)
    sentences = tuple(next_steps(comparison.cases[1]))
    expected = "With 1,200 test examples, a loss of at most 0.002 of accuracy cannot be shown for 6 verdicts: use about"
    too_few = [text for text in sentences if expected in text]
    assert too_few == [sentences[0]]


def test_quality_is_left_out_if_the_speedup_points_to_reject(project: SmallStudy) -> None:
    """Below the required ratio with a wide interval is inconclusive, but not adopted whatever the quality is."""
    project.spread_processes("mixed_bfloat16", "rounds.csv", 1.2)
    comparison = _training_only(project.compare(quality_margin=0.002, min_speedup=1.65))
    assert comparison.cases[0].verdict == "inconclusive"
    assert [text for text in tuple(next_steps(comparison.cases[0])) if "accuracy" in text] == []


def test_weights_that_were_not_evaluated_leave_inference_open(project: SmallStudy) -> None:
    (files.profile_dir("mixed_bfloat16") / "same_weights_2.npy").unlink()
    files.write_manifest(files.profile_dir("mixed_bfloat16"))
    comparison = project.compare()
    candidate = comparison.cases[1]
    assert candidate.verdicts == {"train": "adopt", "inference_b1": "inconclusive", "inference_b32": "inconclusive"}
    missing = [reason for reason in candidate.reasons if reason.code == "same_weights_missing"]
    assert [reason.measure for reason in missing] == ["inference_b1", "inference_b32"]
    (sentence,) = next_steps(candidate)
    assert sentence.startswith("The weights of float32 were not evaluated in the precision of mixed_bfloat16: measure")
    assert verdict_sentence(candidate).endswith(
        "Inference: undecided at batch size 1 and 32, because the weights of float32 were not evaluated in "
        "its precision."
    )
    other = comparison.cases[0]
    assert other.verdicts["inference_b1"] == "reject"
    assert "same_weights_missing" not in [reason.code for reason in other.reasons]
