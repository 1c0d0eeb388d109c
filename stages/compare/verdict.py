"""Adopt, reject or not known yet: the rule, and nothing else."""

from typing import Literal

from stages.compare.statistics import AccuracyChange
from stages.params import CompareParams
from stages.speedup import Speedup

Verdict = Literal["adopt", "reject", "inconclusive"]


def decide(speedup: Speedup, noise_floor: float, accuracy: AccuracyChange, params: CompareParams) -> Verdict:
    """Verdict on one speed-up (of training, or of inference at one batch size) together with the accuracy.

    `adopt` needs both shown: a speed-up that is worth having and above the noise, and no loss beyond the margin.
    `reject` needs one refuted. What the intervals leave open is `inconclusive`.
    """
    outcome = accuracy.outcome(params.accuracy_margin)
    if speedup.low >= worth_having(noise_floor, params) and outcome == "shown":
        return "adopt"
    if speedup.high < params.min_speedup or outcome == "refuted":
        return "reject"
    return "inconclusive"


def worth_having(noise_floor: float, params: CompareParams) -> float:
    """The ratio that a speed-up must be shown to reach: asked for, and above what two equal arms differ by."""
    return max(params.min_speedup, 1 + noise_floor)
