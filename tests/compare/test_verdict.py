"""The verdict rule at its edges."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from stages.compare.verdict import decide
from stages.params import CompareParams
from stages.stats.quality import QualityChange
from stages.stats.speedup import Speedup

PARAMS = CompareParams(min_speedup=1.05, quality_margin=0.01)


@dataclass(frozen=True)
class Case:
    """The interval of the speed-up, the kind of change of quality, the noise floor, and the verdict on them."""

    name: str
    speed: tuple[float, float]
    quality: str
    noise_floor: float
    verdict: str


CASES = [
    Case("both shown", (1.2, 1.4), "same", 0.02, "adopt"),
    Case("faster, but within the noise floor", (1.2, 1.4), "same", 0.25, "inconclusive"),
    Case("interval reaches below min_speedup", (1.0, 1.4), "same", 0.02, "inconclusive"),
    Case("too slow", (0.9, 1.04), "same", 0.02, "reject"),
    Case("upper end just above min_speedup", (0.9, 1.0501), "same", 0.02, "inconclusive"),
    Case("fast and wrong", (1.2, 1.4), "worse", 0.02, "reject"),
    Case("fast, accuracy open", (1.2, 1.4), "open", 0.02, "inconclusive"),
    Case("slow, accuracy open", (0.5, 0.6), "open", 0.02, "reject"),
]


def _speedup(low: float, high: float) -> Speedup:
    """A speed-up over two processes with this t interval."""
    middle, half = (np.log(low) + np.log(high)) / 2, (np.log(high) - np.log(low)) / 2
    spread = half / 12.706204736  # t quantile of one degree of freedom
    return Speedup(((middle - spread,), (middle + spread,)))


def _quality(kind: str) -> QualityChange:
    images, lost = {"same": (4000, 0), "open": (100, 0), "worse": (4000, 200)}[kind]
    candidate = np.ones((1, images), bool)
    candidate[0, :lost] = False
    return QualityChange(np.ones((1, images), bool), candidate)


def test_helper_makes_the_requested_interval() -> None:
    speedup = _speedup(1.2, 1.4)
    assert (speedup.low, speedup.high) == pytest.approx((1.2, 1.4), rel=1e-6)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_verdict(case: Case) -> None:
    assert decide(_speedup(*case.speed), case.noise_floor, _quality(case.quality), PARAMS) == case.verdict
