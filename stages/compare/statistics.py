"""Ratios of times and differences of accuracy, each with an interval that covers what it claims.

Everything is computed from paired raw values: rounds that ran next to each other, and the same test images.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import optimize, stats

from stages.errors import ComparisonError

CONFIDENCE = 0.95
_Z = float(stats.norm.ppf((1 + CONFIDENCE) / 2))

Interval = tuple[float, float]


@dataclass(frozen=True)
class Speedup:
    """Time of the baseline / time of the candidate, a ratio: above 1 the candidate is faster.

    `log_ratios` holds one tuple a process, one natural logarithm of the ratio a round. The interval is Student's t over
    the medians of the processes: rounds of one process share its luck (memory layout, clock, neighbours), so only
    processes count as independent, and a bootstrap over two to five of them claims more than it covers.
    """

    log_ratios: tuple[tuple[float, ...], ...]

    @property
    def rounds(self) -> int:
        """Number of paired rounds."""
        return sum(len(of_process) for of_process in self.log_ratios)

    @property
    def processes(self) -> int:
        """Number of processes: the independent measurements."""
        return len(self.log_ratios)

    @cached_property
    def _medians(self) -> NDArray[np.float64]:
        return np.array([np.median(of_process) for of_process in self.log_ratios])

    @property
    def ratio(self) -> float:
        """The speed-up: exp of the mean of the process medians."""
        return float(np.exp(self._medians.mean()))

    @cached_property
    def _interval(self) -> Interval:
        low, high = t_interval(self._medians)
        return float(np.exp(low)), float(np.exp(high))

    @property
    def low(self) -> float:
        """Lower end of the 95 % interval."""
        return self._interval[0]

    @property
    def high(self) -> float:
        """Upper end of the 95 % interval."""
        return self._interval[1]

    @property
    def noise_floor(self) -> float:
        """Largest deviation from 1 that the interval allows; a noise floor when both arms are the same code."""
        return max(abs(self.low - 1), abs(self.high - 1))


@dataclass(frozen=True)
class AccuracyChange:
    """Accuracy of the candidate − accuracy of the baseline, as a fraction, on the same test images and seeds.

    Both arrays are boolean, `(seeds, images)`: was the image classified correctly. The 95 % interval is
    - one seed: Tango's score interval for the difference of paired proportions;
    - two seeds: an interval over images, of each image's mean over seeds (`images_interval`): it generalises to other
      test images, not to other seeds;
    - three seeds or more: the union of that one and the paired t interval over seeds. The wider answer counts.
    """

    baseline_correct: NDArray[np.bool_]
    candidate_correct: NDArray[np.bool_]

    def __post_init__(self) -> None:
        if self.baseline_correct.shape != self.candidate_correct.shape or self.baseline_correct.ndim != 2:
            raise ValueError(
                f"two (seeds, images) arrays of one shape are needed, not {self.baseline_correct.shape} "
                f"and {self.candidate_correct.shape}"
            )

    @property
    def seeds(self) -> int:
        """Number of trainings of each arm."""
        return int(self.baseline_correct.shape[0])

    @property
    def images(self) -> int:
        """Number of test images."""
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

    @cached_property
    def _interval(self) -> Interval:
        if self.seeds == 1:
            gained = int((self.candidate_correct & ~self.baseline_correct).sum())
            lost = int((self.baseline_correct & ~self.candidate_correct).sum())
            return tango_interval(gained, lost, self.images)
        difference = self.candidate_correct.astype(float) - self.baseline_correct
        low, high = images_interval(difference.mean(axis=0))
        if self.seeds >= 3:
            seeds_low, seeds_high = t_interval(difference.mean(axis=1))
            low, high = min(low, seeds_low), max(high, seeds_high)
        return max(low, -1.0), min(high, 1.0)


def train_speedup(baseline: pd.DataFrame, candidate: pd.DataFrame) -> Speedup:
    """Speed-up of training from two rounds.csv tables, paired by process and round.

    Raises:
        ComparisonError: rounds do not pair, a time is not positive, or there are fewer than two processes.
    """
    per_step = [table.set_index(["process", "round"]).eval("round_time_ms / steps") for table in (baseline, candidate)]
    return _speedup("rounds.csv", *per_step)


def inference_speedup(baseline: pd.DataFrame, candidate: pd.DataFrame, batch_size: int) -> Speedup:
    """Speed-up of inference at one batch size from two inference.csv tables: the median call of each round counts.

    Raises:
        ComparisonError: as `train_speedup`.
    """
    medians = [
        table[table["batch_size"] == batch_size].groupby(["process", "round"])["latency_ms"].median()
        for table in (baseline, candidate)
    ]
    return _speedup(f"inference.csv at batch size {batch_size}", *medians)


def _speedup(what: str, baseline_ms: "pd.Series[float]", candidate_ms: "pd.Series[float]") -> Speedup:
    if baseline_ms.empty:
        raise ComparisonError(f"{what}: nothing was measured; run `dvc repro -f -s profile`")
    if not baseline_ms.index.is_unique or set(baseline_ms.index) != set(candidate_ms.index):
        raise ComparisonError(
            f"{what}: the rounds of two variants do not pair, so they were not measured together; "
            f"run `dvc repro -f -s profile`"
        )
    if (
        not (np.isfinite(baseline_ms) & (baseline_ms > 0)).all()
        or not (np.isfinite(candidate_ms) & (candidate_ms > 0)).all()
    ):
        raise ComparisonError(f"{what}: a time is not a positive number; run `dvc repro -f -s profile`")
    logs = np.log(baseline_ms / candidate_ms.reindex(baseline_ms.index))
    speedup = Speedup(tuple(tuple(map(float, of_process)) for _, of_process in logs.groupby(level="process")))
    if speedup.processes < 2:
        raise ComparisonError(
            f"{what}: {speedup.processes} process was measured, and an interval needs at least 2; raise "
            f"profile.processes in params.yaml and run `dvc repro`"
        )
    return speedup


def t_interval(values: Sequence[float] | NDArray[np.float64]) -> Interval:
    """95 % Student t interval for the mean of independent values (two or more)."""
    half = stats.t.ppf((1 + CONFIDENCE) / 2, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values))
    mean = float(np.mean(values))
    return mean - float(half), mean + float(half)


def images_interval(differences: NDArray[np.float64]) -> Interval:
    """95 % interval for the mean of per-image differences in [−1, 1], shape `(images,)`.

    One image that gains and one that loses are added before the normal interval is taken (Bonett and Price 2012, to
    which this comes down for a single seed): without them, arms that never differ would get an interval of width zero.
    """
    adjusted = np.concatenate([differences, [1.0, -1.0]])
    half = _Z * float(adjusted.std()) / np.sqrt(len(adjusted))
    return float(adjusted.mean() - half), float(adjusted.mean() + half)


def tango_interval(gained: int, lost: int, pairs: int) -> Interval:
    """95 % score interval for (gained − lost) / pairs, the difference of paired proportions (Tango 1998).

    Args:
        gained: pairs that only the candidate gets right.
        lost: pairs that only the baseline gets right.
        pairs: all pairs.

    Returns:
        The two differences at which the score test just does not reject, in [−1, 1].
    """
    z2 = _Z**2
    if gained == lost == 0:  # the equation below has a second root at 0 here
        return -z2 / (pairs + z2), z2 / (pairs + z2)
    if abs(gained - lost) == pairs:  # and here at the end itself
        inner = (pairs - z2) / (pairs + z2)
        return (inner, 1.0) if gained else (-1.0, -inner)
    observed = (gained - lost) / pairs

    def excess(difference: float) -> float:
        return (gained - lost - pairs * difference) ** 2 - z2 * _score_variance(difference, gained, lost, pairs)

    return (
        float(optimize.brentq(excess, -1.0, observed, xtol=1e-12)),
        float(optimize.brentq(excess, observed, 1.0, xtol=1e-12)),
    )


def _score_variance(difference: float, gained: int, lost: int, pairs: int) -> float:
    """Variance of gained − lost where the true difference is `difference`, with the likeliest rate of losses."""
    a = 2 * pairs
    b = (2 * pairs - gained + lost) * difference - gained - lost
    c = -lost * difference * (1 - difference)
    losing = (np.sqrt(max(b * b - 4 * a * c, 0.0)) - b) / (2 * a)
    return pairs * (2 * float(losing) + difference * (1 - difference))
