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
    worth_having = max(params.min_speedup, 1 + noise_floor)
    if speedup.low >= worth_having and accuracy.low >= -params.accuracy_margin:
        return "adopt"
    if speedup.high < params.min_speedup or accuracy.high < -params.accuracy_margin:
        return "reject"
    return "inconclusive"
