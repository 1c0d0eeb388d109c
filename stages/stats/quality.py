"""Differences of quality on the same test examples, each with a confidence interval."""

from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats

from stages.stats.speedup import CONFIDENCE, Interval, t_interval

Z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)

Outcome = Literal["shown", "refuted", "not established"]


@dataclass(frozen=True)
class QualityChange:
    """Accuracy of the candidate − accuracy of the baseline, as a fraction, on the same test examples and seeds.

    Both arrays are boolean, `(seeds, examples)`: whether the example is classified correctly. The 95 % interval is
    - for one seed, Tango's score interval for the difference of paired proportions;
    - for two seeds, an interval over examples, of each example's mean over seeds (`examples_interval`): it generalises
      to other test examples, not to other seeds;
    - for three seeds or more, the union of that one and the paired t interval over seeds.
    """

    baseline_correct: NDArray[np.bool_]
    candidate_correct: NDArray[np.bool_]

    def __post_init__(self) -> None:
        if self.baseline_correct.shape != self.candidate_correct.shape or self.baseline_correct.ndim != 2:
            raise ValueError(
                f"two (seeds, examples) arrays of one shape are needed, not {self.baseline_correct.shape} "
                f"and {self.candidate_correct.shape}"
            )

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
        """Accuracy of the baseline, the mean over seeds, as a fraction."""
        return float(self.baseline_correct.mean())

    @property
    def candidate(self) -> float:
        """Accuracy of the candidate, the mean over seeds, as a fraction."""
        return float(self.candidate_correct.mean())

    @property
    def delta(self) -> float:
        """The change of accuracy, as a fraction."""
        return self.candidate - self.baseline

    @property
    def low(self) -> float:
        """Lower end of the 95 % interval, as a fraction."""
        return self._interval[0]

    @property
    def high(self) -> float:
        """Upper end of the 95 % interval, as a fraction."""
        return self._interval[1]

    def outcome(self, margin: float) -> Outcome:
        """Whether it is shown that no more than `margin` is lost, refuted, or neither."""
        if self.low >= -margin:
            return "shown"
        return "refuted" if self.high < -margin else "not established"

    def p_loss(self, margin: float) -> float:
        """One-sided p-value of the hypothesis that `margin` or more is lost.

        It belongs to the interval: it is at most 2.5 % exactly where the interval's lower end is at least −margin.
        """
        if self.seeds == 1:
            return tango_p(self.gained, self.lost, self.examples, margin)
        p = examples_p(self.difference.mean(axis=0), margin)
        return max(p, t_p(self.difference.mean(axis=1), margin)) if self.seeds >= 3 else p

    @cached_property
    def difference(self) -> NDArray[np.float64]:
        """Candidate − baseline of every example, `(seeds, examples)`: 1 gained, −1 lost, 0 unchanged."""
        return self.candidate_correct.astype(float) - self.baseline_correct

    @property
    def gained(self) -> int:
        """Examples that only the candidate gets right, over all seeds."""
        return int((self.difference > 0).sum())

    @property
    def lost(self) -> int:
        """Examples that only the baseline gets right, over all seeds."""
        return int((self.difference < 0).sum())

    @property
    def mcnemar_p(self) -> float | None:
        """p-value of McNemar's exact test for one seed; None for more, since examples would count several times."""
        return mcnemar_p(self.gained, self.lost) if self.seeds == 1 else None

    @cached_property
    def _interval(self) -> Interval:
        if self.seeds == 1:
            return tango_interval(self.gained, self.lost, self.examples)
        low, high = examples_interval(self.difference.mean(axis=0))
        if self.seeds >= 3:
            seeds_low, seeds_high = t_interval(self.difference.mean(axis=1))
            low, high = min(low, seeds_low), max(high, seeds_high)
        return max(low, -1.0), min(high, 1.0)


def mcnemar_p(gained: int, lost: int) -> float:
    """Two-sided p-value of McNemar's exact test that gains and losses are equally likely; 1 if there are none.

    A small value shows that two trainings differ. A large one does not show that they are equal: the interval may.
    """
    return float(stats.binomtest(gained, gained + lost).pvalue) if gained + lost else 1.0


def tango_p(gained: float, lost: float, pairs: float, margin: float) -> float:
    """One-sided p-value of Tango's score test that the true difference is −margin or less; as `tango_interval`."""
    score = gained - lost + pairs * margin
    return float(stats.norm.sf(score / np.sqrt(score_variance(-margin, gained, lost, pairs))))


def examples_p(differences: NDArray[np.float64], margin: float) -> float:
    """One-sided p-value that the mean of per-example differences is −margin or less; as `examples_interval`."""
    middle, standard_error = adjusted_moments(differences.mean(), (differences**2).mean(), len(differences))
    return float(stats.norm.sf((middle + margin) / standard_error))


def t_p(values: NDArray[np.float64], margin: float) -> float:
    """One-sided p-value of Student's t test that the mean of independent values is −margin or less."""
    distance, standard_error = float(values.mean()) + margin, float(stats.sem(values))
    if standard_error == 0:
        return 0.0 if distance >= 0 else 1.0
    return float(stats.t.sf(distance / standard_error, len(values) - 1))


def examples_interval(differences: NDArray[np.float64]) -> Interval:
    """95 % interval for the mean of per-example differences in [−1, 1], shape `(examples,)`.

    One gain and one loss are added before the normal interval is computed, as Bonett and Price (2012) do for one seed.
    Without them, variants that never differ would get an interval of width zero.
    """
    middle, standard_error = adjusted_moments(differences.mean(), (differences**2).mean(), len(differences))
    return middle - Z * standard_error, middle + Z * standard_error


def adjusted_moments(mean: float, mean_square: float, examples: float) -> tuple[float, float]:
    """Mean and standard error of differences with one gain and one loss more, from their mean and mean square."""
    middle = examples * mean / (examples + 2)
    variance = (examples * mean_square + 2) / (examples + 2) - middle**2
    return middle, float(np.sqrt(variance / (examples + 2)))


def tango_interval(gained: float, lost: float, pairs: float) -> Interval:
    """95 % score interval for (gained − lost) / pairs, the difference of paired proportions (Tango 1998).

    Args:
        gained: pairs that only the candidate gets right.
        lost: pairs that only the baseline gets right.
        pairs: all pairs. Counts may be fractional, for projections to other sample sizes.

    Returns:
        The two differences in [−1, 1] at which the score test is on the edge of rejecting.
    """
    z2 = Z**2
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
