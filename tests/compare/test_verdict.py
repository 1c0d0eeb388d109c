"""The verdict rules at their edges."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from scipy import optimize

from halfstep.compare.verdict import Claim, judge, void_measures
from halfstep.params.schema import CompareParams
from halfstep.results.comparison import Verdict
from halfstep.stats.proportions import BinaryChange
from halfstep.stats.speedup import Speedup
from halfstep.words.text import TRAIN
from tests.small_study import measured_speedup, speedup_between

MARGIN = 0.01
PARAMS = CompareParams(min_speedup=1.05)
SURE, OPEN = 0.001, 0.3  # adjusted p-values


@dataclass(frozen=True)
class Case:
    """The interval of the speed-up, that of the precision's factor, the kind of change of quality, and the verdict."""

    name: str
    p_adjusted: float
    speed: tuple[float, float]
    quality: str
    verdict: Verdict
    precision: tuple[float, float] | None = None


CASES = [
    Case("p is small", SURE, (1.2, 1.4), "same", "adopt"),
    Case("p is at the limit", 0.05, (1.2, 1.4), "same", "adopt"),
    Case("p is just above it", 0.0501, (1.2, 1.4), "same", "inconclusive"),
    Case("interval above min_speedup, but the verdicts share the error", OPEN, (1.06, 1.4), "same", "inconclusive"),
    Case("p is small, and the printed interval is not above min_speedup", 0.04, (1.045, 1.4), "same", "inconclusive"),
    Case("so is that of the precision", 0.04, (1.2, 1.4), "same", "inconclusive", precision=(1.045, 1.2)),
    Case("too slow", 1.0, (0.9, 1.04), "same", "reject"),
    Case("upper end just above min_speedup", 1.0, (0.9, 1.0501), "same", "inconclusive"),
    Case("fast and wrong", 1.0, (1.2, 1.4), "worse", "reject"),
    Case("fast, accuracy open", OPEN, (1.2, 1.4), "open", "inconclusive"),
    Case("fast, accuracy shown at 5 % only", 0.04, (1.2, 1.4), "nearly", "inconclusive"),
    Case("slow, accuracy open", OPEN, (0.5, 0.6), "open", "reject"),
    Case("fast by its other settings only", 1.0, (1.2, 1.4), "same", "reject", precision=(0.9, 1.04)),
    Case("fast, precision open", OPEN, (1.2, 1.4), "same", "inconclusive", precision=(1.0, 1.2)),
    Case("both factors are fast", SURE, (1.2, 1.4), "same", "adopt", precision=(1.1, 1.2)),
]


def _quality(kind: str) -> BinaryChange:
    images, lost = {"same": (4000, 0), "nearly": (300, 0), "open": (100, 0), "worse": (4000, 200)}[kind]
    candidate = np.ones((1, images), bool)
    candidate[0, :lost] = False
    return BinaryChange(np.ones((1, images), bool), candidate)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_verdict(case: Case) -> None:
    precision = None if case.precision is None else speedup_between(*case.precision)
    claim = Claim(speedup_between(*case.speed), precision, _quality(case.quality), MARGIN)
    assert claim.verdict(case.p_adjusted, PARAMS) == case.verdict


@pytest.mark.parametrize(
    ("speed", "precision", "verdict"),
    [
        ((1.05, 1.4), None, "faster"),
        ((1.0499, 1.4), None, "inconclusive"),
        ((1.2, 1.4), (1.06, 1.2), "faster"),
        ((1.2, 1.4), (1.0, 1.2), "inconclusive"),
        ((1.2, 1.4), (0.8, 0.9), "inconclusive"),  # it takes less time, though not by its precision
        ((0.9, 0.999), None, "slower"),
        ((0.9, 1.0), None, "inconclusive"),
        ((0.9, 0.999), (1.2, 1.4), "slower"),
        ((1.01, 1.04), None, "inconclusive"),  # not worth having, and not slower
        ((0.9, 1.2), None, "inconclusive"),
    ],
)
def test_verdict_on_speed_only(
    speed: tuple[float, float], precision: tuple[float, float] | None, verdict: Verdict
) -> None:
    speedup, factor = speedup_between(*speed), None if precision is None else speedup_between(*precision)
    params = CompareParams(min_speedup=speedup.low) if speed[0] == PARAMS.min_speedup else PARAMS
    claims = {("a", TRAIN): Claim(speedup, factor)}
    assert judge(claims, (), params) == {("a", TRAIN): (verdict, None)}
    assert judge(claims, [TRAIN], params) == {("a", TRAIN): ("inconclusive", None)}


def test_p_is_the_largest_of_its_parts() -> None:
    fast, slower = measured_speedup(1.4, -0.02, 0.02, 0.01, -0.01), measured_speedup(1.1, -0.02, 0.02, 0.01, -0.01)
    same, unknown = _quality("same"), _quality("open")
    p_fast, p_slower, p_unknown = fast.p_below(1.05), slower.p_below(1.05), unknown.p_loss(0.01)
    assert same.p_loss(0.01) < p_fast < p_slower < p_unknown
    assert Claim(fast, None, same, MARGIN).p_value(PARAMS) == p_fast
    assert (
        Claim(fast, slower, same, MARGIN).p_value(PARAMS)
        == Claim(slower, fast, same, MARGIN).p_value(PARAMS)
        == p_slower
    )
    assert Claim(fast, slower, unknown, MARGIN).p_value(PARAMS) == p_unknown


def test_p_is_at_most_a_half_of_the_error_where_all_intervals_allow_it() -> None:
    at_the_edge = measured_speedup(1.2, -0.02, 0.02, 0.01, -0.01)
    params = CompareParams(min_speedup=at_the_edge.low)
    assert Claim(at_the_edge, None, _quality("same"), MARGIN).p_value(params) == pytest.approx(0.025)


def test_verdicts_of_a_report_share_the_error() -> None:
    """p = 0.02 is enough alone, and not beside two verdicts that fail; a void measure still counts as a test."""
    speedup = measured_speedup(1.2, -0.1, 0.1, 0.05, -0.05)
    params = CompareParams(min_speedup=_threshold(speedup, 0.02))
    claims = {("a", "train"): Claim(speedup, None, _quality("same"), MARGIN)}
    ((verdict, test),) = judge(claims, (), params).values()
    assert test is not None
    assert verdict == "adopt"
    assert (test.p, test.p_adjusted) == pytest.approx((0.02, 0.02))
    assert judge(claims, ["train"], params) == {("a", "train"): ("inconclusive", test)}
    for name in "bc":
        claims[name, "inference_b1"] = Claim(measured_speedup(1.2, -0.1, 0.1), None, _quality("same"), MARGIN)
    judged = judge(claims, ["inference_b1"], params)
    _, test = judged["a", "train"]
    assert test is not None
    assert test.p_adjusted == pytest.approx(0.06)
    assert {verdict for verdict, _ in judged.values()} == {"inconclusive"}


def _threshold(speedup: Speedup, p: float) -> float:
    return float(optimize.brentq(lambda ratio: speedup.p_below(ratio) - p, 1.0, speedup.ratio))


def _control(deviation: float, ratio: float = 1.02) -> Speedup:
    return measured_speedup(ratio, -deviation, deviation, -deviation, deviation, -deviation, deviation)


def test_control_that_differs_at_99_percent_voids_its_measure() -> None:
    assert void_measures({"train": _control(0.005)}) == {"train"}
    assert void_measures({"train": _control(0.05)}) == frozenset()
    assert void_measures({}) == frozenset()


def test_measures_share_the_error_of_the_control() -> None:
    """1.02 with 98.9 to 99.5 % confidence above 1: enough alone, and not as one of three."""
    control = _control(0.01)
    assert control.interval(0.99)[0] > 1 > control.interval(1 - 0.01 / 3)[0]
    assert void_measures({"train": control}) == {"train"}
    quiet = {f"inference_b{size}": _control(0.01, 1.0) for size in (1, 32)}
    assert void_measures({"train": control} | quiet) == frozenset()
