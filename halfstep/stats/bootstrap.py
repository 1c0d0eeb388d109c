"""The change of a metric: a paired bootstrap over the test examples, with BCa intervals."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from halfstep.stats.quality import PairedArrays, unseen_loss
from halfstep.stats.resampling import MetricScores

FEWEST_EXAMPLES = 500
FEWEST_DIFFERING = 25  # so that the skewness of the difference, at most 1 / √25, is as small as for scores

_NORMAL = NormalDist()


@dataclass(frozen=True)
class Bootstrap:
    """An estimate with its bootstrap replicates and jackknife values.

    The ends of its intervals are those of Efron (Better bootstrap confidence intervals, JASA 82, 1987), as in
    `scipy.stats.bootstrap(method="BCa")`; but equal replicates give an interval of width zero instead of NaN, and
    beyond the outermost replicates the tails are normal, so that they promise no smaller p-value than they can.
    """

    value: float
    replicates: NDArray[np.float64]
    jackknife: NDArray[np.float64]

    @cached_property
    def bias(self) -> float:
        """Bias correction: the normal quantile of the share of replicates below the estimate; equal ones count half."""
        below, above = np.mean(self.replicates < self.value), np.mean(self.replicates > self.value)
        least = 1 / (len(self.replicates) + 1)
        return _NORMAL.inv_cdf(min(max((1 + float(below - above)) / 2, least), 1 - least))

    @cached_property
    def influences(self) -> NDArray[np.float64]:
        """How each example, or group of them, moves the estimate: `(groups,)`, up to a factor; their mean is 0."""
        return self.jackknife.mean() - self.jackknife

    @cached_property
    def skew(self) -> float:
        """Skewness of the estimate: six times the acceleration, which for a mean is skewness / √n of the examples."""
        squares = float(np.sum(self.influences**2))
        return float(np.sum(self.influences**3)) / squares**1.5 if squares > 0 else 0.0

    @cached_property
    def effective_number(self) -> float:
        """How many equal influences would have their kurtosis: examples that matter; 0 if none does.

        The skewness is at most 1 / √ of it, by the inequality of Cauchy and Schwarz.
        """
        fourth = float(np.sum(self.influences**4))
        return float(np.sum(self.influences**2)) ** 2 / fourth if fourth > 0 else 0.0

    def end(self, z: float) -> float:
        """Lower end of the interval at a normal quantile; an upper end at a negative one."""
        shifted = self.bias - z
        quantile = self.bias + shifted / max(1 - self.skew / 6 * shifted, 1e-3)
        outermost = _NORMAL.inv_cdf(1 / (len(self.replicates) + 1))
        inner = min(max(quantile, outermost), -outermost)
        inner_value = float(np.quantile(self.replicates, _NORMAL.cdf(inner)))
        return inner_value + (quantile - inner) * float(self.replicates.std())


@dataclass(frozen=True)
class MetricChange(PairedArrays):
    """The change of a metric, from arrays `(seeds, 1 + REPLICATES + groups)` of `metric_scores`.

    The interval over examples is BCa's, of the differences of the replicates. Where few examples make the difference,
    a loss that no example shows is added to it, as large as the largest that one example can take from the metric.
    """

    test_examples: int

    fewest_examples = FEWEST_EXAMPLES

    @property
    def examples(self) -> int:
        """Number of test examples."""
        return self.test_examples

    @property
    def baseline(self) -> float:
        """The metric of the baseline, the mean over seeds."""
        return float(MetricScores(self.baseline_scores).value.mean())

    @property
    def candidate(self) -> float:
        """The metric of the candidate, the mean over seeds."""
        return float(MetricScores(self.candidate_scores).value.mean())

    @cached_property
    def difference(self) -> MetricScores:
        """Candidate − baseline of every value, `(seeds, ...)`."""
        return MetricScores(self.candidate_scores - self.baseline_scores)

    @property
    def by_seed(self) -> NDArray[np.float64]:
        """The change of each seed, `(seeds,)`."""
        return self.difference.value

    @cached_property
    def bootstrap(self) -> Bootstrap:
        """The change, the mean over seeds."""
        scores = MetricScores(self.difference.array.mean(axis=0))
        return Bootstrap(float(scores.value), scores.replicates, scores.jackknife)

    @cached_property
    def largest_loss(self) -> float:
        """What one example can take from the metric at most: n times the range of its influence, of either variant.

        The influence of one example of a group of g is estimated as that of the group times √g.
        """
        scores = np.concatenate([self.baseline_scores, self.candidate_scores])
        jackknife = MetricScores(scores).jackknife
        group = self.examples / jackknife.shape[1]
        return float(np.ptp(jackknife, axis=1).max()) * (self.examples - group) / math.sqrt(group)

    @property
    def is_few(self) -> bool:
        """Whether few examples make the difference."""
        return self.bootstrap.effective_number < FEWEST_DIFFERING

    @property
    def why_unreliable(self) -> str | None:
        """Why no interval can be relied upon: too few examples, or a metric that no example changes."""
        if self.examples < FEWEST_EXAMPLES:
            return f"a metric takes at least {FEWEST_EXAMPLES:,} test examples, and there are {self.examples:,}"
        if self.largest_loss == 0:
            return "no single test example changes the metric, so what one more could is unknown"
        return None

    @property
    def why_widened(self) -> str | None:
        """Why the interval is wider: few examples make the difference."""
        if not self.is_few:
            return None
        return (
            f"so few test examples change the metric (about {self.bootstrap.effective_number:.0f}; {FEWEST_DIFFERING} "
            "are needed) that a loss which none of them shows cannot be excluded and widens the interval"
        )

    def end(self, z: float) -> float:
        """Lower end of the interval over examples at a normal quantile; an upper end at a negative one."""
        unseen = unseen_loss(self.largest_loss, self.examples, z) if self.is_few else 0.0
        return self.bootstrap.end(z) - unseen
