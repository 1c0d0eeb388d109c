"""How much more must be measured to settle a verdict: test images, seeds, or processes.

Each number gives a power of 80 %: if the truth is what was seen, four of five such measurements settle the verdict.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist

from scipy import stats

from stages.stats.quality import QualityChange, adjusted_moments, score_variance, t_p
from stages.stats.speedup import CONFIDENCE, Speedup, t_interval

POWER = 0.8
ADOPT_ERROR = 1 - CONFIDENCE  # one-sided, shared by all verdicts of a report
REJECT_ERROR = (1 - CONFIDENCE) / 2  # one-sided, of a 95 % interval
MAX_EXAMPLES = 10_000_000
MAX_SEEDS = 200
MAX_PROCESSES = 10_000  # what needs more is too close to the threshold to be settled


def number_of_verdicts(variants: int, inference_batch_sizes: int) -> int:
    """Verdicts of one report: every variant but the baseline, for training and for inference at each batch size."""
    return (variants - 1) * (1 + inference_batch_sizes)


def smallest_test_set(margin: float, seeds: int = 1, verdicts: int = 1) -> int:
    """The fewest test images that can show the margin: those with which two variants never differ.

    Holm's first step asks every verdict for a one-sided error of 5 % / `verdicts`; let z be its normal quantile. With
    one seed, Tango's score without a discordant image is z² = n margin / (1 - margin). With more, the test over images,
    which adds one gain and one loss, has z = margin (n + 2) / √2.

    Args:
        margin: largest loss that counts as the same accuracy, as a fraction.
        seeds: trainings of each variant.
        verdicts: number of verdicts in the report.
    """
    z = _quantile(ADOPT_ERROR / verdicts)
    if seeds == 1:
        return math.ceil(z**2 * (1 - margin) / margin)
    return max(1, math.ceil(z * math.sqrt(2) / margin - 2))


def too_few_images(images: int, margin: float, seeds: int, verdicts: int = 1) -> str | None:
    """A line to print if so many test images can never show the margin; None otherwise."""
    enough = smallest_test_set(margin, seeds, verdicts)
    if images >= enough:
        return None
    shared = f" for {verdicts} verdicts" if verdicts > 1 else ""
    return (
        f"{images:,} test images cannot show compare.quality_margin {margin:g}{shared}, whatever the accuracies are; "
        f"at least {enough:,} are needed: raise data.test_fraction, add images, or declare a larger margin"
    )


def examples_needed(change: QualityChange, margin: float, alpha: float = ADOPT_ERROR) -> int | None:
    """Test examples that settle the margin at the rates of gains and losses seen, with the same seeds.

    A seen gain is planned as no change, and one gain and one loss are added to those seen, so that few examples without
    a difference do not promise that there never is one. With one seed the number is that of the score test for paired
    proportions (Nam, Biometrics 53, 1997, p. 1422): n = (z_alpha √V0 + z_power √V1)² / (difference + margin)², where V0
    is the variance of a pair at the margin and V1 that at the difference. With more it is the same with V0 = V1.

    Args:
        change: the quality so far.
        margin: largest loss that counts as the same, as a fraction.
        alpha: largest one-sided p-value that settles it as shown; a refutation takes 2.5 %.

    Returns:
        None if it is settled, or if more examples alone would not settle it: the change is at the margin, or the seeds
        disagree too much.
    """
    error = _error(change, margin, alpha)
    if error is None or (change.seeds >= 3 and not _seeds_agree(change, margin, error)):
        return None
    examples, distance = change.examples, _planned(change) + margin
    by_example = change.difference.mean(axis=0)
    _, standard_error = adjusted_moments(by_example.mean(), (by_example**2).mean(), examples)
    variance = at_margin = standard_error**2 * (examples + 2)
    if change.seeds == 1:
        gained, lost = ((count + 1) / (examples + 2) for count in (change.gained, change.lost))
        at_margin = score_variance(-margin, gained, lost, 1.0)
    needed = (_quantile(error) * math.sqrt(at_margin) + _quantile(1 - POWER) * math.sqrt(variance)) ** 2 / distance**2
    return max(math.ceil(needed), examples + 1) if needed <= MAX_EXAMPLES else None


def seeds_needed(change: QualityChange, margin: float, alpha: float = ADOPT_ERROR) -> int | None:
    """Seeds that settle the margin on the same test examples, from the spread between the seeds so far.

    Both tests of three or more seeds must have the power; arguments as in `examples_needed`.

    Returns:
        None if it is settled, if there is one seed and so no spread, or if more seeds alone would not settle it.
    """
    error = _error(change, margin, alpha)
    if change.seeds < 2 or error is None:
        return None
    mean, sd = _planned(change), float(change.difference.mean(axis=1).std(ddof=1))
    within = float(change.difference.var(axis=0, ddof=1).mean())  # averaging over seeds reduces this part only
    between = max(float(change.difference.mean(axis=0).var()) - within / change.seeds, 0.0)
    distance = abs(mean + margin)

    def settles(seeds: int) -> bool:
        _, standard_error = adjusted_moments(mean, between + within / seeds + mean**2, change.examples)
        over_examples = distance >= (_quantile(error) + _quantile(1 - POWER)) * standard_error
        return over_examples and _t_power(distance, sd, seeds, error) >= POWER

    return _fewest(settles, max(change.seeds + 1, 3), MAX_SEEDS)


def processes_needed(
    speedup: Speedup, threshold: float, alpha: float = ADOPT_ERROR, true_ratio: float | None = None
) -> int | None:
    """Processes, as long as those so far, that settle on which side of `threshold` the ratio is.

    The power is that of Student's t test over the processes, with the spread between them so far.

    Args:
        speedup: measured so far.
        threshold: smallest ratio worth having.
        alpha: largest one-sided p-value above the threshold; below it a 95 % interval decides.
        true_ratio: assumed ratio; None for the one seen. What the other side costs: an end of the interval.

    Returns:
        The number in all; None if the ratio is too close to the threshold.
    """
    distance = math.log((true_ratio or speedup.ratio) / threshold)
    error = alpha if distance > 0 else REJECT_ERROR
    error *= (1 - speedup.confidence) / (1 - CONFIDENCE)  # as the interim looks leave
    sd = speedup.standard_error * math.sqrt(speedup.processes)
    return _fewest(lambda number: _t_power(abs(distance), sd, number, error) >= POWER, 2, MAX_PROCESSES)


def _quantile(error: float) -> float:
    return -NormalDist().inv_cdf(error)


def _planned(change: QualityChange) -> float:
    """The change to plan with: a gain that was seen may be luck."""
    return min(change.delta, 0.0)


def _error(change: QualityChange, margin: float, alpha: float) -> float | None:
    """The one-sided error of the side of the margin that the change is on; None if it is settled, or at the margin."""
    if change.p_loss(margin) <= alpha or change.outcome(margin) == "refuted" or _planned(change) == -margin:
        return None
    return alpha if _planned(change) > -margin else REJECT_ERROR


def _seeds_agree(change: QualityChange, margin: float, error: float) -> bool:
    """Whether the test over seeds has its answer."""
    by_seed = change.difference.mean(axis=1)
    return t_p(by_seed, margin) <= error if _planned(change) > -margin else t_interval(by_seed)[1] < -margin


def _t_power(distance: float, sd: float, number: int, error: float) -> float:
    """Power of a one-sided t test of `number` values whose mean is `distance` from the threshold (noncentral t)."""
    if sd == 0:
        return float(distance > 0)
    shift = distance / sd * math.sqrt(number)
    critical = float(stats.t.isf(error, number - 1))
    return 1.0 if shift > critical + 40 else float(stats.nct.sf(critical, number - 1, shift))


def _fewest(settles: Callable[[int], bool], start: int, most: int) -> int | None:
    """The smallest number from `start` to `most` that settles it, by bisection: more never unsettles it."""
    if not settles(most):
        return None
    below, enough = start - 1, most
    while enough - below > 1:
        middle = (below + enough) // 2
        below, enough = (below, middle) if settles(middle) else (middle, enough)
    return enough
