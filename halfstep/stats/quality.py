"""Differences of quality on the same test examples, each with a confidence interval: what all kinds of scores share."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special, stats

from halfstep.stats.speedup import CONFIDENCE, Interval
from halfstep.words.outcomes import Outcome

Z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
_LARGEST_Z = 8.0  # a one-sided p-value of 6e-16
FEWEST_SEEDS = 3  # whose spread says something about other seeds; that of two does not, with one degree of freedom


class QualityChange(ABC):
    """Score of the candidate − score of the baseline, in the score's units, on the same test examples and seeds.

    There are three kinds: `BinaryChange` (scores that are 0 or 1), `ScoreChange` (a number for each example) and
    `MetricChange` (one number for the whole test set). The 95 % interval is
    - for one or two seeds, an interval over examples, of the mean over seeds: it generalises to other test examples,
      not to other seeds;
    - for three seeds or more, one over examples and seeds, which generalises to both: their variances add up, each end
      is as far from the middle as `degrees` and both errors make it (Zou and Donner, Statistics in Medicine 27, 2008).
    """

    is_fraction = False  # whether the score is a share of the examples, shown in percent
    fewest_examples = 1  # with which a margin can be shown, whatever the scores are

    @property
    @abstractmethod
    def seeds(self) -> int:
        """Number of trainings of each variant."""

    @property
    @abstractmethod
    def examples(self) -> int:
        """Number of test examples."""

    @property
    @abstractmethod
    def baseline(self) -> float:
        """Score of the baseline, the mean over seeds."""

    @property
    @abstractmethod
    def candidate(self) -> float:
        """Score of the candidate, the mean over seeds."""

    @property
    @abstractmethod
    def by_seed(self) -> NDArray[np.float64]:
        """The change of each seed, `(seeds,)`."""

    @abstractmethod
    def end(self, z: float) -> float:
        """Lower end of the interval over examples at a normal quantile; an upper end at a negative one."""

    @abstractmethod
    def examples_p(self, margin: float) -> float:
        """One-sided p-value over the test examples of the hypothesis that `margin` or more is lost."""

    @property
    def delta(self) -> float:
        """The change of the score."""
        return self.candidate - self.baseline

    @property
    def low(self) -> float:
        """Lower end of the 95 % interval."""
        return self.interval[0]

    @property
    def high(self) -> float:
        """Upper end of the 95 % interval."""
        return self.interval[1]

    @property
    def why_unreliable(self) -> str | None:
        """Why no interval of these scores can be relied upon, so that nothing is established; None if one can."""
        return None

    @property
    def why_widened(self) -> str | None:
        """Why the interval is wider than the differences alone make it; None if it is not."""
        return None

    def reason(self, margin: float) -> str | None:
        """Why the outcome is not established although the interval may look it; None where the interval says it all."""
        return (self.why_unreliable or self.why_widened) if self.outcome(margin) == "not established" else None

    def outcome(self, margin: float) -> Outcome:
        """Whether it is shown that no more than `margin` is lost, refuted, or neither."""
        if self.why_unreliable is not None:
            return "not established"
        if self.low >= -margin:
            return "shown"
        return "refuted" if self.high < -margin else "not established"

    def p_loss(self, margin: float) -> float:
        """One-sided p-value of the hypothesis that `margin` or more is lost.

        It belongs to the interval: it is at most 2.5 % exactly where the interval's lower end is at least −margin. It
        is 1 if no interval can be relied upon.
        """
        if self.why_unreliable is not None:
            return 1.0
        if self.seeds < FEWEST_SEEDS:
            return self.examples_p(margin)
        return p_of_end(self._end_over_both, -margin)

    @property
    def mcnemar_p(self) -> float | None:
        """p-value of McNemar's exact test for 0/1 scores of one seed; None otherwise."""
        return None

    @cached_property
    def interval(self) -> Interval:
        """The 95 % interval."""
        return self.interval_at(Z)

    def interval_at(self, z: float) -> Interval:
        """The interval at a normal quantile."""
        end = self.end if self.seeds < FEWEST_SEEDS else self._end_over_both
        return end(z), end(-z)

    @cached_property
    def _seeds_error(self) -> float:
        """Standard error of the mean over seeds, from the spread between them."""
        return float(stats.sem(self.by_seed))

    @cached_property
    def degrees(self) -> float:
        """Degrees of freedom of the error over examples and seeds."""
        return degrees_over_both((self.end(-1.0) - self.end(1.0)) / 2, self._seeds_error, self.seeds)

    def _end_over_both(self, z: float) -> float:
        """Lower end of the interval over examples and seeds at a normal quantile; an upper end at a negative one."""
        middle = self.end(0.0)
        if z == 0:
            return middle
        quantile = math.copysign(-float(special.stdtrit(self.degrees, special.ndtr(-abs(z)))), z)
        over_examples = (middle - self.end(z)) * quantile / z
        return middle - math.copysign(math.hypot(over_examples, quantile * self._seeds_error), z)


@dataclass(frozen=True)
class PairedArrays(QualityChange):
    """A change from float64 arrays of both variants, `(seeds, ...)`, whose interval is given by its `end`."""

    baseline_scores: NDArray[np.float64]
    candidate_scores: NDArray[np.float64]

    def __post_init__(self) -> None:
        check_paired(self.baseline_scores, self.candidate_scores)

    @property
    def seeds(self) -> int:
        """Number of trainings of each variant."""
        return int(self.baseline_scores.shape[0])

    def examples_p(self, margin: float) -> float:
        """One-sided p-value over the test examples of the hypothesis that `margin` or more is lost."""
        return p_of_end(self.end, -margin)


def check_paired(baseline: NDArray[np.generic], candidate: NDArray[np.generic]) -> None:
    """Raises ValueError unless both arrays are of one shape, with the seeds as first of two dimensions."""
    if baseline.shape != candidate.shape or baseline.ndim != 2:
        raise ValueError(f"two (seeds, ...) arrays of one shape are needed, not {baseline.shape} and {candidate.shape}")


def degrees_over_both(over_examples: float, over_seeds: float, seeds: int) -> float:
    """Degrees of freedom of the square root of the sum of two squared errors, of which that over examples is known.

    They are Satterthwaite's (Biometrics Bulletin 2, 1946, p. 110) divided by 1 + 2 / d, with the d = seeds − 1 of the
    error over seeds, and d at least. Undivided, the error over seeds that happens to be small counts for too little: a
    loss at the margin is shown to be none in 3.9 % of simulated comparisons with three seeds, and in 2.8 % with these.

    Args:
        over_examples: standard error over the test examples.
        over_seeds: standard error from the spread between the seeds.
        seeds: number of them.
    """
    own = seeds - 1
    share = over_seeds**2 / (over_examples**2 + over_seeds**2) if over_seeds else 0.0
    return max(own, own / share**2 / (1 + 2 / own)) if share else math.inf


def p_of_end(end: Callable[[float], float], threshold: float) -> float:
    """One-sided p-value of the hypothesis that the true value is `threshold` or less, by inverting an interval.

    Args:
        end: the interval's lower end by its normal quantile, 1.96 for the lower end of a 95 % interval; the upper ends
            are at negative quantiles. It does not increase.
        threshold: the value in question.
    """
    if end(_LARGEST_Z) >= threshold:
        return float(special.ndtr(-_LARGEST_Z))
    if end(-_LARGEST_Z) < threshold:
        return 1.0
    return float(special.ndtr(-optimize.brentq(lambda z: end(z) - threshold, -_LARGEST_Z, _LARGEST_Z, xtol=1e-12)))


def unseen_loss(largest: float, examples: int, z: float) -> float:
    """What a loss that none of the test examples shows may take from the mean, at a normal quantile.

    Without an event among n examples, the score interval of its probability ends at z² / (n + z²) (Wilson 1927). For
    0/1 scores that never differ, this is Tango's interval.

    Args:
        largest: the largest loss of one example.
        examples: test examples.
        z: normal quantile; for a negative one the result is negative, a gain.
    """
    return largest * z * abs(z) / (examples + z * z)
