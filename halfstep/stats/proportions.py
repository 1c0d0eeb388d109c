"""The change of scores that are 0 or 1, such as accuracy: paired proportions."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special, stats

from halfstep.stats.quality import QualityChange, Z, check_paired
from halfstep.stats.speedup import Interval


@dataclass(frozen=True)
class BinaryChange(QualityChange):
    """The change of a share, such as accuracy, as a fraction.

    Both arrays are boolean, `(seeds, examples)`: whether the score is 1, as of an example that is classified correctly.
    The interval over examples is
    - for one seed, Tango's score interval for the difference of paired proportions;
    - for more, `examples_interval` of each example's mean over seeds.
    """

    is_fraction = True

    baseline_correct: NDArray[np.bool_]
    candidate_correct: NDArray[np.bool_]

    def __post_init__(self) -> None:
        check_paired(self.baseline_correct, self.candidate_correct)

    @property
    def seeds(self) -> int:
        """Number of trainings of each variant."""
        return int(self.baseline_correct.shape[0])

    @property
    def examples(self) -> int:
        """Number of test examples."""
        return int(self.baseline_correct.shape[1])

    @property
    def baseline(self) -> float:
        """Share of the baseline, the mean over seeds, as a fraction."""
        return float(self.baseline_correct.mean())

    @property
    def candidate(self) -> float:
        """Share of the candidate, the mean over seeds, as a fraction."""
        return float(self.candidate_correct.mean())

    @cached_property
    def difference(self) -> NDArray[np.float64]:
        """Candidate − baseline of every example, `(seeds, examples)`: 1 gained, −1 lost, 0 unchanged."""
        return self.candidate_correct.astype(float) - self.baseline_correct

    @property
    def by_seed(self) -> NDArray[np.float64]:
        """The change of each seed, `(seeds,)`."""
        return np.asarray(self.difference.mean(axis=1))

    @property
    def gained(self) -> int:
        """Examples whose score is 1 only with the candidate, over all seeds."""
        return int((self.difference > 0).sum())

    @property
    def lost(self) -> int:
        """Examples whose score is 1 only with the baseline, over all seeds."""
        return int((self.difference < 0).sum())

    @property
    def mcnemar_p(self) -> float | None:
        """p-value of McNemar's exact test for one seed; None for more, since examples would count several times."""
        return mcnemar_p(self.gained, self.lost) if self.seeds == 1 else None

    def interval_at(self, z: float) -> Interval:
        """The interval at a normal quantile, within [−1, 1]."""
        low, high = super().interval_at(z)
        return max(low, -1.0), min(high, 1.0)

    def end(self, z: float) -> float:
        """Lower end of the interval over examples at a normal quantile; an upper end at a negative one."""
        if self.seeds == 1:
            return tango_interval(self.gained, self.lost, self.examples, abs(z))[z < 0]
        return examples_interval(self.difference.mean(axis=0), abs(z))[z < 0]

    def examples_p(self, margin: float) -> float:
        """One-sided p-value over the test examples of the hypothesis that `margin` or more is lost."""
        if self.seeds == 1:
            return tango_p(self.gained, self.lost, self.examples, margin)
        return examples_p(self.difference.mean(axis=0), margin)


def mcnemar_p(gained: int, lost: int) -> float:
    """Two-sided p-value of McNemar's exact test that gains and losses are equally likely; 1 if there are none.

    A small value shows that two trainings differ. A large one does not show that they are equal: the interval may.
    """
    return float(stats.binomtest(gained, gained + lost).pvalue) if gained + lost else 1.0


def tango_p(gained: float, lost: float, pairs: float, margin: float) -> float:
    """One-sided p-value of Tango's score test that the true difference is −margin or less; as `tango_interval`."""
    score = gained - lost + pairs * margin
    return float(special.ndtr(-score / np.sqrt(score_variance(-margin, gained, lost, pairs))))


def examples_p(differences: NDArray[np.float64], margin: float) -> float:
    """One-sided p-value that the mean of per-example differences is −margin or less; as `examples_interval`."""
    middle, standard_error = adjusted_moments(differences.mean(), (differences**2).mean(), len(differences))
    return float(special.ndtr(-(middle + margin) / standard_error))


def examples_interval(differences: NDArray[np.float64], z: float = Z) -> Interval:
    """Interval for the mean of per-example differences in [−1, 1], `(examples,)`, at a normal quantile, else of 95 %.

    One gain and one loss are added before the normal interval is computed, as Bonett and Price (2012) do for one seed.
    Without them, variants that never differ would get an interval of width zero.
    """
    middle, standard_error = adjusted_moments(differences.mean(), (differences**2).mean(), len(differences))
    return middle - z * standard_error, middle + z * standard_error


def adjusted_moments(mean: float, mean_square: float, examples: float) -> tuple[float, float]:
    """Mean and standard error of differences with one gain and one loss more, from their mean and mean square."""
    middle = examples * mean / (examples + 2)
    variance = (examples * mean_square + 2) / (examples + 2) - middle**2
    return middle, float(np.sqrt(variance / (examples + 2)))


def tango_interval(gained: float, lost: float, pairs: float, z: float = Z) -> Interval:
    """Score interval for (gained − lost) / pairs, the difference of paired proportions (Tango 1998).

    Args:
        gained: pairs that only the candidate gets right.
        lost: pairs that only the baseline gets right.
        pairs: all pairs. Counts may be fractional, for projections to other sample sizes.
        z: normal quantile, that of 95 % if it is left out.

    Returns:
        The two differences in [−1, 1] at which the score test is on the edge of rejecting.
    """
    z2 = z**2
    if gained == lost == 0:  # the equation below has a second root, at 0
        return -z2 / (pairs + z2), z2 / (pairs + z2)
    if abs(gained - lost) == pairs:  # or at the end of the range
        inner = (pairs - z2) / (pairs + z2)
        return (inner, 1.0) if gained else (-1.0, -inner)
    observed = (gained - lost) / pairs

    def excess(difference: float) -> float:
        return (gained - lost - pairs * difference) ** 2 - z2 * score_variance(difference, gained, lost, pairs)

    return (
        float(optimize.brentq(excess, -1.0, observed, xtol=1e-12)),
        float(optimize.brentq(excess, observed, 1.0, xtol=1e-12)),
    )


def score_variance(difference: float, gained: float, lost: float, pairs: float) -> float:
    """Variance of gained − lost at a true difference of `difference`, with the maximum-likelihood rate of losses."""
    a = 2 * pairs
    b = (2 * pairs - gained + lost) * difference - gained - lost
    c = -lost * difference * (1 - difference)
    losing = (np.sqrt(max(b * b - 4 * a * c, 0.0)) - b) / (2 * a)
    return pairs * (2 * float(losing) + difference * (1 - difference))
