"""The verdict rule."""

from stages.params import CompareParams
from stages.results.comparison import Verdict
from stages.stats.quality import QualityChange
from stages.stats.sample_size import required_speedup
from stages.stats.speedup import Speedup


def decide(speedup: Speedup, noise_floor: float, quality: QualityChange, params: CompareParams) -> Verdict:
    """The verdict on one speed-up (of training, or of inference at one batch size) together with the quality.

    `adopt` needs both shown: a speed-up that is worth having and above the noise floor, and no loss beyond the margin.
    `reject` needs one of them refuted. Otherwise the verdict is `inconclusive`.
    """
    outcome = quality.outcome(params.quality_margin)
    if speedup.low >= required_speedup(noise_floor, params.min_speedup) and outcome == "shown":
        return "adopt"
    if speedup.high < params.min_speedup or outcome == "refuted":
        return "reject"
    return "inconclusive"
