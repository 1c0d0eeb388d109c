"""Comparisons of a complete study, read from files that the stages' writers wrote."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from halfstep.compare.case import Case, Judging
from halfstep.compare.document import judged
from halfstep.compare.study import load_study
from halfstep.errors import ComparisonError
from halfstep.params.schema import CompareParams, Variant
from halfstep.results.profile import same_weights_file
from halfstep.stats.speedup import TUNER_SD
from halfstep.system import files
from tests.small_study import (
    BATCH_SIZES,
    BRIDGE,
    ENDING,
    IMAGES,
    PROTOCOL,
    SEEDS,
    SmallStudy,
    predictions,
    settings_in_force,
)


def _codes(candidate: Case) -> list[str]:
    return [reason.code for reason in candidate.reasons]


def test_xla_that_is_requested_but_not_in_force_is_a_reason(project: SmallStudy) -> None:
    project.add_bridge("_bridge_onednn_off_xla_off", onednn=False)  # of mixed_float16, whose entry has no XLA
    project.add_bridge("_bridge_xla_off")
    for name, policy in (("float32", "float32"), ("_control", "float32"), ("mixed_bfloat16", "mixed_bfloat16")):
        project.edit_profile(name, entry=Variant(policy=policy, xla=True), in_force=settings_in_force(policy, xla=True))
    assert "xla_differs" not in _codes(project.compare().cases[1])
    project.edit_profile("mixed_bfloat16", in_force=settings_in_force("mixed_bfloat16"))
    candidate = project.compare().cases[1]
    (reason,) = [reason for reason in candidate.reasons if reason.code == "xla_differs"]
    assert reason.text == "XLA is off although the entry of variants requests it on."
    assert reason.evidence == {"requested_xla": True, "candidate_xla": False}


def test_real_difference_of_onednn_is_a_reason_whatever_the_entries_request(project: SmallStudy) -> None:
    project.edit_profile("mixed_bfloat16", in_force=settings_in_force("mixed_bfloat16", onednn=False))
    candidate = project.compare().cases[1]
    reasons = [reason for reason in candidate.reasons if reason.code == "onednn_differs"]
    assert [reason.measure for reason in reasons] == ["train", "inference_b1", "inference_b32"]
    assert reasons[0].evidence["baseline_onednn"] is True
    assert reasons[0].evidence["candidate_onednn"] is False
    assert reasons[0].evidence["settings_factor"]["ratio"] == pytest.approx(0.8)
    assert candidate.limit is None


def test_intervals_have_the_confidence_of_their_measure(project: SmallStudy) -> None:
    """A measure that ended at an interim look has that look's confidence, the control 95 %."""
    narrow = project.compare()
    early = {"mixed_bfloat16": {"train": ENDING.model_copy(update={"confidence": 0.995, "looks": 1})}}
    endings = {name: dict(of_one) | early.get(name, {}) for name, of_one in PROTOCOL.endings.items()}
    project.edit_profile("float32", protocol=PROTOCOL.model_copy(update={"endings": endings}))
    wide = project.compare()
    for variant in (0, 1):
        for measure in ("train", "inference_b1"):
            before, after = (judging.cases[variant].speedups[measure] for judging in (narrow, wide))
            assert after.ratio == before.ratio
            assert (after.high > before.high) is (after.low < before.low) is ((variant, measure) == (1, "train"))
    assert {speedup.confidence for speedup in wide.control.values()} == {0.95}


def test_arms_that_did_not_take_turns_are_not_paired(project: SmallStudy) -> None:
    """The processes of all arms become slower together, which only turns can show."""
    paired = project.compare().cases[1]
    project.edit_profile("float32", protocol=PROTOCOL.model_copy(update={"interleaved": False}))
    alone = project.compare().cases[1]
    assert alone.speedups["train"].ratio == paired.speedups["train"].ratio
    assert alone.speedups["train"].half_width > 5 * paired.speedups["train"].half_width


def test_noise_of_the_control_changes_no_interval_and_is_no_threshold(project: SmallStudy) -> None:
    """The noise floor exceeds the gain of 60 %, and the verdict still follows from the interval."""
    before = project.compare()
    project.spread_processes("_control", "inference.csv", 1.5)
    after = project.compare()
    assert after.void == frozenset()
    assert after.control["inference_b1"].noise_floor > 0.6
    assert after.cases[1].speedups == before.cases[1].speedups
    assert after.cases[1].verdicts == {"train": "adopt", "inference_b1": "adopt", "inference_b32": "adopt"}


def test_control_that_was_measured_in_one_repeat_decides_nothing(project: SmallStudy) -> None:
    for name in ("rounds.csv", "inference.csv"):
        path = files.profile_dir("_control") / name
        table = pd.read_csv(path)
        table[table["process"] == 0].to_csv(path, index=False)
        files.write_manifest(path.parent)
    judging = project.compare()
    assert judging.control == {}
    assert judging.cases[1].verdict == "adopt"


def test_control_that_differs_voids_the_verdicts_of_its_measure(project: SmallStudy) -> None:
    assert project.compare().void == frozenset()
    project.scale_times("_control", "rounds.csv", 1.2)
    judging = project.compare()
    assert judging.void == {"train"}
    assert judging.control["train"].high < 1
    slow, fast = judging.cases[:2]
    assert slow.verdicts == {"train": "inconclusive", "inference_b1": "reject", "inference_b32": "reject"}
    assert fast.verdicts == {"train": "inconclusive", "inference_b1": "adopt", "inference_b32": "adopt"}
    assert fast.tests["train"].p_adjusted < 0.05  # the ratio alone would adopt


def test_control_is_no_second_baseline(project: SmallStudy) -> None:
    project.scale_times("_control", "inference.csv", 1.01)
    judging = project.compare()
    assert judging.cases[1].speedups["inference_b1"].ratio == pytest.approx(1.6)
    assert judging.cases[0].factors["inference_b1"].settings.ratio == pytest.approx(0.8)
    assert judging.control["inference_b1"].ratio == pytest.approx(1 / 1.01)


def test_factors_are_there_only_where_other_settings_differ(comparison: Judging) -> None:
    slow, fast, failed = comparison.cases
    assert list(slow.factors) == ["train", "inference_b1", "inference_b32"]
    assert fast.factors == failed.factors == {}
    for measure, factors in slow.factors.items():
        assert factors.settings.ratio == pytest.approx(0.8)
        assert factors.precision.ratio == pytest.approx(0.3125)
        assert factors.settings.ratio * factors.precision.ratio == pytest.approx(slow.speedups[measure].ratio)


def test_candidate_that_is_fast_by_its_other_settings_is_rejected(project: SmallStudy) -> None:
    """Training takes 1/1.6 of the time, and without oneDNN float32 takes 1/2: the precision costs a fifth."""
    project.scale_times("mixed_float16", "rounds.csv", 0.25 / 1.6)
    assert project.compare().cases[0].verdict == "adopt"
    project.scale_times(BRIDGE, "rounds.csv", 0.8 / 2.0)
    candidate = project.compare().cases[0]
    assert candidate.speedups["train"].ratio == pytest.approx(1.6)
    assert candidate.factors["train"].precision.ratio == pytest.approx(0.8)
    assert candidate.verdict == "reject"
    project.scale_times(BRIDGE, "rounds.csv", 2.0 / 1.1)
    candidate = project.compare().cases[0]
    assert candidate.factors["train"].precision.ratio == pytest.approx(1.6 / 1.1)
    assert candidate.verdict == "adopt"


def test_training_asks_the_quality_of_trainings_and_inference_that_of_the_same_weights(project: SmallStudy) -> None:
    candidate = project.compare().cases[1]
    assert candidate.quality is not None
    assert candidate.same_weights is not None
    assert candidate.quality.delta == pytest.approx(-3 / IMAGES)
    assert candidate.same_weights.delta == pytest.approx(-1 / IMAGES)
    assert candidate.quality_of("train") is candidate.quality
    assert candidate.quality_of("inference_b1") is candidate.same_weights
    for seed in SEEDS:
        path = same_weights_file("mixed_bfloat16", seed)
        np.save(path, predictions(124, seed))
        files.write_manifest(path.parent)
    verdicts = project.compare().cases[1].verdicts
    assert verdicts == {"train": "adopt", "inference_b1": "reject", "inference_b32": "reject"}


def test_verdicts_of_a_report_share_the_error(project: SmallStudy) -> None:
    """Six verdicts; a failed candidate has none. The three that are sure count 6, 5 and 4 times."""
    judging = project.compare()
    tests = {(item.variant, measure): test for item in judging.cases for measure, test in item.tests.items()}
    assert len(tests) == 6
    assert judging.cases[2].tests == {}
    assert judging.alpha == pytest.approx(0.05 / 6)
    ordered = sorted(test.p for test in tests.values())
    factors = {p: 6 - rank for rank, p in reversed(list(enumerate(ordered)))}
    smallest = min(tests.values(), key=lambda test: test.p)
    assert smallest.p_adjusted == pytest.approx(6 * factors[smallest.p] / 6 * smallest.p)
    assert all(test.p_adjusted >= test.p for test in tests.values())


def test_more_verdicts_ask_more(project: SmallStudy) -> None:
    """A candidate that is adopted where it is the only one, and is not beside another one that is slow."""
    project.spread_processes("mixed_bfloat16", "rounds.csv", 1.07)
    verdicts, p_values = {}, {}
    for variants in (("float32", "mixed_bfloat16"), ("float32", "mixed_float16", "mixed_bfloat16")):
        params = CompareParams(min_speedup=1.405)
        candidate = judged(load_study("float32", variants, SEEDS, BATCH_SIZES), params).cases[-1]
        verdicts[len(variants)], p_values[len(variants)] = candidate.verdict, candidate.tests["train"]
    assert p_values[2].p == p_values[3].p == p_values[2].p_adjusted
    assert p_values[3].p_adjusted == pytest.approx(4 * p_values[3].p)  # three of the other one are slow
    assert verdicts == {2: "adopt", 3: "inconclusive"}


@pytest.mark.parametrize("xla", [True, False])
def test_compilations_that_repeats_share_widen_the_interval(xla: bool, project: SmallStudy) -> None:
    """With XLA, by 1 % of each arm where its two compilations differ by no more."""
    before = project.compare().cases[1].speedups["train"]
    shared = PROTOCOL.model_copy(update={"compilations": 2}).model_dump()
    for name in ("float32", "mixed_float16", "mixed_bfloat16"):
        project.edit_profile(name, protocol=shared, in_force=settings_in_force(name, xla=xla).model_dump())
    after = project.compare().cases[1].speedups["train"]
    known = 2 * TUNER_SD**2 / 2 if xla else 0.0
    assert after.error.standard_error**2 == pytest.approx(before.error.standard_error**2 + known)


def test_batch_size_that_was_not_measured_is_named(project: SmallStudy) -> None:
    study = load_study("float32", ("float32", "mixed_float16"), (1,), (1, 64))
    with pytest.raises(ComparisonError, match="batch size 64: two variants have no round in common"):
        judged(study, CompareParams())


def test_inference_need_not_be_measured(project: SmallStudy) -> None:
    project.remove_inference()
    study = load_study("float32", ("float32", "mixed_bfloat16"), (1, 2, 3), ())
    (candidate,) = judged(study, CompareParams()).cases
    assert list(candidate.speedups) == list(candidate.verdicts) == ["train"]
