"""The change of a score that is a number for each test example."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from halfstep.stats.proportions import BinaryChange
from halfstep.stats.quality import PairedArrays, unseen_loss

FEWEST_EXAMPLES = 1000
FEWEST_DIFFERING = 50
# Skewness of the mean of the differences. That of a thousand lognormal values (sigma = 1) is mostly below the first.
SKEWED, OUTLIERS = 0.2, 0.3


@dataclass(frozen=True)
class ScoreChange(PairedArrays):
    """The change of the mean score, from float64 arrays `(seeds, examples)`.

    The interval over examples is that of Johnson's modified t, which corrects the skewness of the differences (Johnson,
    JASA 73, 1978), with the cubic term that makes it monotone (Hall, J. Roy. Statist. Soc. B 54, 1992). Where few
    examples differ, or a few of them much more than the others, a loss that no example shows widens it.
    """

    fewest_examples = FEWEST_EXAMPLES

    @property
    def examples(self) -> int:
        """Number of test examples."""
        return int(self.baseline_scores.shape[1])

    @property
    def baseline(self) -> float:
        """Mean score of the baseline."""
        return float(self.baseline_scores.mean())

    @property
    def candidate(self) -> float:
        """Mean score of the candidate."""
        return float(self.candidate_scores.mean())

    @cached_property
    def difference(self) -> NDArray[np.float64]:
        """Candidate − baseline of every example, `(seeds, examples)`."""
        return self.candidate_scores - self.baseline_scores

    @property
    def by_seed(self) -> NDArray[np.float64]:
        """The change of each seed, `(seeds,)`."""
        return np.asarray(self.difference.mean(axis=1))

    @cached_property
    def by_example(self) -> NDArray[np.float64]:
        """The change of each example, the mean over seeds, `(examples,)`."""
        return np.asarray(self.difference.mean(axis=0))

    @cached_property
    def differing(self) -> int:
        """Examples whose score differs."""
        return int(np.count_nonzero(self.by_example))

    @cached_property
    def largest_loss(self) -> float:
        """From the best to the worst score seen, of either variant."""
        scores = (self.baseline_scores, self.candidate_scores)
        return float(max(map(np.max, scores)) - min(map(np.min, scores)))

    @cached_property
    def skewness(self) -> float:
        """Skewness of the examples' differences; 0 if all are equal."""
        return float(stats.skew(self.by_example)) if np.ptp(self.by_example) > 0 else 0.0

    @property
    def skew_of_mean(self) -> float:
        """Skewness of the mean of the differences: skewness / √n."""
        return self.skewness / math.sqrt(self.examples)

    @property
    def why_unreliable(self) -> str | None:
        """Why no interval can be relied upon: too few examples, or scores that are all equal."""
        if self.examples < FEWEST_EXAMPLES:
            return (
                f"a score that is not 0 or 1 takes at least {FEWEST_EXAMPLES:,} test examples, and there are "
                f"{self.examples:,}"
            )
        if self.largest_loss == 0:
            return "all scores are equal, so how much one example can lose is unknown"
        return None

    @property
    def why_widened(self) -> str | None:
        """Why the interval is wider: few examples differ, or a few of them much more than the others."""
        if self.differing < FEWEST_DIFFERING:
            reason = f"so few test examples differ ({self.differing:,}; {FEWEST_DIFFERING} are needed)"
        elif abs(self.skew_of_mean) > SKEWED:
            reason = (
                f"a few test examples differ so much more than the others (skewness {abs(self.skew_of_mean):.2g} of "
                f"the mean difference; {SKEWED:g} at most)"
            )
        else:
            return None
        return f"{reason} that a loss which none of them shows cannot be excluded and widens the interval"

    @property
    def unseen(self) -> float:
        """The largest loss of one example that is reckoned with although no example shows it; 0 for the usual scores.

        It is the range of the scores, and ten times that where the differences have outliers: then the range itself
        may be much larger than the test set shows.
        """
        if self.why_widened is None:
            return 0.0
        has_outliers = self.differing >= FEWEST_DIFFERING and abs(self.skew_of_mean) > OUTLIERS
        return (10.0 if has_outliers else 1.0) * self.largest_loss

    def end(self, z: float) -> float:
        """Lower end of the interval over examples at a normal quantile; an upper end at a negative one."""
        return johnson_end(self.by_example, self.skewness, z) - unseen_loss(self.unseen, self.examples, z)


def score_change(baseline: NDArray[Any], candidate: NDArray[Any]) -> BinaryChange | ScoreChange:
    """The change of per-example scores `(seeds, examples)`: of a share if all of them are 0 or 1, or booleans."""
    if all(np.isin(scores, (0, 1)).all() for scores in (baseline, candidate)):
        return BinaryChange(baseline == 1, candidate == 1)
    return ScoreChange(baseline, candidate)


def johnson_end(values: NDArray[np.float64], skewness: float, z: float) -> float:
    """Lower end, at a normal quantile, of the interval for the mean of independent values that may be skewed.

    With u = (mean − true mean) / sd and the skewness g, Johnson's statistic √n (u + g u² / 3 + g / 6n), to which Hall
    adds g² u³ / 27, follows Student's t. It is solved for the true mean.

    Args:
        values: independent values, `(n,)`.
        skewness: of them.
        z: normal quantile; a negative one gives an upper end.
    """
    n = len(values)
    wanted = -float(special.stdtrit(n - 1, special.ndtr(-z))) / math.sqrt(n) - skewness / (6 * n)
    u = wanted if abs(skewness) < 1e-6 else 3 * (np.cbrt(1 + skewness * wanted) - 1) / skewness
    return float(values.mean() - u * values.std(ddof=1))
