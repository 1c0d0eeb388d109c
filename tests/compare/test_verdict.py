"""The rule of the verdict at its edges."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from stages.compare.statistics import AccuracyChange
from stages.compare.verdict import decide
from stages.params import CompareParams
from stages.speedup import Speedup

PARAMS = CompareParams(min_speedup=1.05, accuracy_margin=0.01)


@dataclass(frozen=True)
class Case:
    """Speed-up between `low` and `high`, and the change of accuracy between `lost` and `gained` in the same way."""

    name: str
    speed: tuple[float, float]
    accuracy: str
    noise_floor: float
    verdict: str


CASES = [
    Case("both shown", (1.2, 1.4), "same", 0.02, "adopt"),
    Case("faster, but within the noise", (1.2, 1.4), "same", 0.25, "inconclusive"),
    Case("interval reaches below the smallest worth having", (1.0, 1.4), "same", 0.02, "inconclusive"),
    Case("too slow", (0.9, 1.04), "same", 0.02, "reject"),
    Case("high end just at what is worth having", (0.9, 1.0501), "same", 0.02, "inconclusive"),
    Case("fast and wrong", (1.2, 1.4), "worse", 0.02, "reject"),
    Case("fast, accuracy open", (1.2, 1.4), "open", 0.02, "inconclusive"),
    Case("slow, accuracy open", (0.5, 0.6), "open", 0.02, "reject"),
]


def _speedup(low: float, high: float) -> Speedup:
    """A speed-up of two processes whose t interval has just these ends."""
    middle, half = (np.log(low) + np.log(high)) / 2, (np.log(high) - np.log(low)) / 2
    spread = half / 12.706204736 * np.sqrt(2) / np.sqrt(2)  # t quantile of one degree of freedom; sd·1/√2 = spread
    return Speedup(((middle - spread,), (middle + spread,)))


def _accuracy(kind: str) -> AccuracyChange:
    images, lost = {"same": (4000, 0), "open": (100, 0), "worse": (4000, 200)}[kind]
    candidate = np.ones((1, images), bool)
    candidate[0, :lost] = False
    return AccuracyChange(np.ones((1, images), bool), candidate)


def test_the_helper_makes_the_interval_that_it_is_asked_for() -> None:
    speedup = _speedup(1.2, 1.4)
    assert (speedup.low, speedup.high) == pytest.approx((1.2, 1.4), rel=1e-6)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_verdict(case: Case) -> None:
    assert decide(_speedup(*case.speed), case.noise_floor, _accuracy(case.accuracy), PARAMS) == case.verdict
