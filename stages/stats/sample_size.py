"""How much more must be measured to settle a verdict: test examples, seeds, repeats, or occasions.

Each number gives a power of 80 %: if the truth is what was seen, four of five such measurements settle the verdict.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist

from scipy import stats

from stages.stats.proportions import BinaryChange, adjusted_moments, score_variance
from stages.stats.quality import FEWEST_SEEDS, QualityChange, degrees_over_both
from stages.stats.speedup import CONFIDENCE, Error, Speedup

POWER = 0.8
ADOPT_ERROR = 1 - CONFIDENCE  # one-sided, shared by all verdicts of a report
SHOWN_ERROR = REJECT_ERROR = (1 - CONFIDENCE) / 2  # one-sided, of a 95 % interval
MAX_EXAMPLES = 10_000_000
MAX_SEEDS = 200
MAX_PROCESSES = 10_000  # what needs more is too close to the threshold to be settled
MAX_OCCASIONS = 100


def smallest_test_set(margin: float, seeds: int = 1, verdicts: int = 1) -> int:
    """The fewest test examples that can show the margin of a 0/1 score: those with which two variants never differ.

    Holm's first step asks every verdict for a one-sided error of 5 % / `verdicts`, and the interval for 2.5 %; let z be
    the normal quantile of the smaller one. With one seed, Tango's score without a discordant example is
    z² = n margin / (1 - margin). With more, the test over examples, which adds one gain and one loss, has
    z = margin (n + 2) / √2.

    Args:
        margin: largest loss that counts as the same, as a fraction.
        seeds: trainings of each variant.
        verdicts: number of verdicts in the report.
    """
    z = _quantile(min(ADOPT_ERROR / verdicts, SHOWN_ERROR))
    if seeds == 1:
        return math.ceil(z**2 * (1 - margin) / margin)
    return max(1, math.ceil(z * math.sqrt(2) / margin - 2))


def too_few_examples(
    examples: int, score_name: str, margin: float, seeds: int, verdicts: int = 1, planned: int = 0
) -> str | None:
    """A line to print if so many test examples can never show the margin of a 0/1 score; None otherwise.

    `planned` is what `examples_needed` returns, where something has been measured.
    """
    enough = smallest_test_set(margin, seeds, verdicts)
    if examples >= enough:
        return None
    needed = f"about {planned:,}" if planned > enough else f"at least {enough:,}"
    shared = f" for {verdicts} verdicts" if verdicts > 1 else ""
    return (
        f"{examples:,} test examples cannot show compare.quality_margin {margin:g}{shared}, whatever {score_name} is; "
        f"{needed} are needed: use more test examples, or declare a larger margin"
    )


def examples_needed(change: QualityChange, margin: float, alpha: float = ADOPT_ERROR) -> int | None:
    """Test examples that settle the margin with the spread seen, and the same seeds.

    A seen gain is planned as no change. The number is n = (z_alpha √V0 + z_power √V1)² / (difference + margin)²,
    where V0 is the variance of an example at the margin and V1 that at the difference. For 0/1 scores with one seed it
    is that of the score test for paired proportions (Nam, Biometrics 53, 1997, p. 1422), and one gain and one loss are
    added to those seen, so that few examples without a difference do not promise that there never is one. Else V0 = V1.
    With three or more seeds the spread between them stays as it is, and V1 / n is added to it.

    Args:
        change: the quality so far.
        margin: largest loss that counts as the same, in units of the score.
        alpha: largest one-sided p-value that settles it as shown; a refutation takes 2.5 %.

    Returns:
        None if it is settled; if more examples alone would not settle it, because the change is at the margin or the
        seeds disagree too much; or if the differences seen are too few or too skewed to plan with.
    """
    error = _error(change, margin, alpha)
    if error is None or not _can_plan(change):
        return None
    at_margin, at_difference = _variances(change, margin)
    if change.seeds >= FEWEST_SEEDS:
        distance, of_seeds = abs(_planned(change) + margin), float(change.by_seed.std(ddof=1))
        fewest = max(change.examples + 1, change.fewest_examples)
        return _fewest(
            lambda n: _has_power(distance, math.sqrt(at_difference / n), of_seeds, change.seeds, error),
            fewest,
            MAX_EXAMPLES,
        )
    spread = _quantile(error) * math.sqrt(at_margin) + _quantile(1 - POWER) * math.sqrt(at_difference)
    needed = spread**2 / (_planned(change) + margin) ** 2
    return max(math.ceil(needed), change.examples + 1, change.fewest_examples) if needed <= MAX_EXAMPLES else None


def seeds_needed(change: QualityChange, margin: float, alpha: float = ADOPT_ERROR) -> int | None:
    """Seeds that settle the margin on the same test examples, from the spread between the seeds so far.

    The test over examples and seeds must have the power; arguments as in `examples_needed`.

    Returns:
        None if it is settled, if there is one seed and so no spread, if more seeds alone would not settle it, or if the
        test examples do not allow any answer.
    """
    error = _error(change, margin, alpha)
    if change.seeds < 2 or error is None or change.doubt or change.caution:
        return None
    distance, sd = abs(_planned(change) + margin), float(change.by_seed.std(ddof=1))

    return _fewest(
        lambda seeds: _has_power(distance, change.standard_error(seeds), sd, seeds, error),
        max(change.seeds + 1, FEWEST_SEEDS),
        MAX_SEEDS,
    )


def processes_needed(
    speedup: Speedup, threshold: float, alpha: float = ADOPT_ERROR, true_ratio: float | None = None
) -> int | None:
    """Repeats, as long as those so far, that settle on which side of `threshold` the ratio is.

    The power is that of Student's t test with the standard error and the degrees of freedom of a repeat so far. What
    whole runs differ by stays as it is.

    Args:
        speedup: measured so far.
        threshold: smallest ratio worth having.
        alpha: largest one-sided p-value above the threshold; below it a 95 % interval decides.
        true_ratio: assumed ratio; None for the one seen. What the other side costs: an end of the interval.

    Returns:
        The number in all; None if the ratio is too close to the threshold.
    """
    within = speedup.within_run
    sd = within.standard_error * math.sqrt(speedup.processes)
    if not math.isfinite(sd):
        return None
    each = within.error.degrees / max(1, speedup.processes - speedup.repeats_decide)
    settled = _settled(speedup, threshold, alpha, true_ratio)

    def settles(number: int) -> bool:
        error = Error(sd / math.sqrt(number), each * (number - speedup.repeats_decide))
        return settled(error.with_known(2 * speedup.run_sd**2))

    return _fewest(settles, 2, MAX_PROCESSES)


def occasions_needed(
    speedup: Speedup, threshold: float, alpha: float = ADOPT_ERROR, true_ratio: float | None = None
) -> int | None:
    """Occasions, each as long as those so far, that settle on which side of `threshold` the ratio is.

    Arguments and power as of `processes_needed`.

    Returns:
        The number in all; None if the ratio is too close to the threshold.
    """
    error = speedup.error if speedup.earlier else speedup.within_run.error.with_known(2 * speedup.run_sd**2)
    if not math.isfinite(error.standard_error):
        return None
    settled = _settled(speedup, threshold, alpha, true_ratio)

    def settles(number: int) -> bool:
        return settled(Error(error.standard_error / math.sqrt(number), error.degrees * number))

    return _fewest(settles, 2, MAX_OCCASIONS)


def _settled(speedup: Speedup, threshold: float, alpha: float, true_ratio: float | None) -> Callable[[Error], bool]:
    """Whether an error of the logarithm gives the power."""
    distance = math.log((true_ratio or speedup.ratio) / threshold)
    level = (alpha if distance > 0 else REJECT_ERROR) * (1 - speedup.confidence) / (1 - CONFIDENCE)  # looks are paid
    return lambda error: _t_power(abs(distance), error.standard_error, error.degrees, level) >= POWER


def _quantile(error: float) -> float:
    return -NormalDist().inv_cdf(error)


def _planned(change: QualityChange) -> float:
    """The change to plan with: a gain that was seen may be luck."""
    return min(change.delta, 0.0)


def _error(change: QualityChange, margin: float, alpha: float) -> float | None:
    """The one-sided error of the side of the margin that the change is on; None if it is settled, or at the margin."""
    shown = change.p_loss(margin) <= min(alpha, SHOWN_ERROR)
    if shown or change.outcome(margin) == "refuted" or _planned(change) == -margin:
        return None
    return min(alpha, SHOWN_ERROR) if _planned(change) > -margin else REJECT_ERROR


def _can_plan(change: QualityChange) -> bool:
    """Whether the spread seen is what more examples would show: differences are neither too few nor too skewed."""
    return not change.caution and (change.doubt is None or change.examples < change.fewest_examples)


def _variances(change: QualityChange, margin: float) -> tuple[float, float]:
    """Variance of an example's difference if the change is at the margin, and if it is the one seen."""
    if not isinstance(change, BinaryChange):
        variance = change.standard_error(change.seeds) ** 2 * change.examples
        return variance, variance
    more, by_example = change.examples + 2, change.difference.mean(axis=0)
    _, standard_error = adjusted_moments(by_example.mean(), (by_example**2).mean(), change.examples)
    if change.seeds > 1:
        return standard_error**2 * more, standard_error**2 * more
    gained, lost = ((count + 1) / more for count in (change.gained, change.lost))
    return score_variance(-margin, gained, lost, 1.0), standard_error**2 * more


def _has_power(distance: float, over_examples: float, seed_sd: float, seeds: int, error: float) -> bool:
    """Whether the test over examples and seeds has the power, from its error over examples and the spread of seeds."""
    over_seeds = seed_sd / math.sqrt(seeds)
    degrees = degrees_over_both(over_examples, over_seeds, seeds)
    return _t_power(distance, math.hypot(over_examples, over_seeds), degrees, error) >= POWER


def _t_power(distance: float, standard_error: float, degrees: float, error: float) -> float:
    """Power of a one-sided t test of a mean that is `distance` from the threshold (noncentral t)."""
    if standard_error == 0:
        return float(distance > 0)
    shift = distance / standard_error
    critical = float(stats.t.isf(error, degrees))
    if math.isinf(degrees):
        return float(stats.norm.sf(critical - shift))
    return 1.0 if shift > critical + 40 else float(stats.nct.sf(critical, degrees, shift))


def _fewest(settles: Callable[[int], bool], start: int, most: int) -> int | None:
    """The smallest number from `start` to `most` that settles it, by bisection: more never unsettles it."""
    if not settles(most):
        return None
    below, enough = start - 1, most
    while enough - below > 1:
        middle = (below + enough) // 2
        below, enough = (below, middle) if settles(middle) else (middle, enough)
    return enough
