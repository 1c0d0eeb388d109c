"""Ratios of times that were measured in turns, each with an interval that covers what it claims.

`profile` decides by them when it has measured enough, `compare` judges by them: both see the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from stages.errors import ComparisonError

CONFIDENCE = 0.95
TRIMMED_SHARE = 0.25  # of the rounds of a process, at either end
# Looks that may end a measurement early, as shares of its processes. Each spends a little of the 5 % that an interval
# may miss, and the last look has what is left: whoever looks often, and stops at a narrow interval without paying for
# it, covers 72 to 91 % instead of 95.
EARLY_LOOKS = (1 / 2, 5 / 8, 3 / 4)
EARLY_CONFIDENCE = 0.995
FEWEST_PROCESSES_AT_A_LOOK = 3
FEWEST_ROUNDS_AT_A_LOOK = 30

Interval = tuple[float, float]


def early_looks(processes: int) -> tuple[int, ...]:
    """After how many processes the intervals are looked at before the last look, in a measurement of so many."""
    counts = {math.ceil(share * processes) for share in EARLY_LOOKS} - {processes}
    return tuple(sorted(count for count in counts if count >= FEWEST_PROCESSES_AT_A_LOOK))


def last_confidence(early_looks_held: int) -> float:
    """Confidence of the intervals at the last look: all looks together may miss 5 %."""
    return CONFIDENCE + early_looks_held * (1 - EARLY_CONFIDENCE)


@dataclass(frozen=True)
class Speedup:
    """Time of the baseline / time of the candidate, a ratio: above 1 the candidate is faster.

    `log_ratios` holds one tuple a process, one natural logarithm of the ratio a round. A process counts by the mean of
    the middle half of its rounds: nearly as sharp as a mean, and as deaf to outliers as need be. The interval is
    Student's t over the processes: rounds of one process share its luck (memory layout, clock, neighbours), so only
    processes count as independent, and a bootstrap over two to five of them claims more than it covers.

    `confidence` is that of the look which ended the measurement, so that the interval holds 95 % with the looks paid.
    """

    log_ratios: tuple[tuple[float, ...], ...]
    confidence: float = CONFIDENCE

    @property
    def rounds(self) -> int:
        """Number of paired rounds."""
        return sum(len(of_process) for of_process in self.log_ratios)

    @property
    def processes(self) -> int:
        """Number of processes: the independent measurements."""
        return len(self.log_ratios)

    @cached_property
    def by_process(self) -> NDArray[np.float64]:
        """Logarithm of the ratio of each process, `(processes,)`: the trimmed mean of its rounds."""
        return np.array([middle_mean(of_process) for of_process in self.log_ratios])

    @property
    def ratio(self) -> float:
        """The speed-up: exp of the mean over the processes."""
        return float(np.exp(self.by_process.mean()))

    @cached_property
    def _interval(self) -> Interval:
        low, high = t_interval(self.by_process, self.confidence)
        return float(np.exp(low)), float(np.exp(high))

    @property
    def low(self) -> float:
        """Lower end of the interval."""
        return self._interval[0]

    @property
    def high(self) -> float:
        """Upper end of the interval."""
        return self._interval[1]

    @property
    def half_width(self) -> float:
        """Half the width of the interval, as a ratio."""
        return (self.high - self.low) / 2

    @property
    def noise_floor(self) -> float:
        """Largest deviation from 1 that the interval allows; a noise floor when both arms are the same code."""
        return max(abs(self.low - 1), abs(self.high - 1))


def train_speedup(baseline: pd.DataFrame, candidate: pd.DataFrame, confidence: float = CONFIDENCE) -> Speedup:
    """Speed-up of training from two rounds.csv tables, paired by process and round.

    Raises:
        ComparisonError: rounds do not pair, a time is not positive, or there are fewer than two processes.
    """
    before, after = (
        table.set_index(["process", "round"]).eval("round_time_ms / steps") for table in (baseline, candidate)
    )
    return _speedup("rounds.csv", before, after, confidence)


def inference_speedup(
    baseline: pd.DataFrame, candidate: pd.DataFrame, batch_size: int, confidence: float = CONFIDENCE
) -> Speedup:
    """Speed-up of inference at one batch size from two inference.csv tables: the median call of each round counts.

    Raises:
        ComparisonError: as `train_speedup`.
    """
    before, after = (
        table[table["batch_size"] == batch_size].groupby(["process", "round"])["latency_ms"].median()
        for table in (baseline, candidate)
    )
    return _speedup(f"inference.csv at batch size {batch_size}", before, after, confidence)


def _speedup(what: str, baseline_ms: pd.Series[float], candidate_ms: pd.Series[float], confidence: float) -> Speedup:
    if baseline_ms.empty:
        raise ComparisonError(f"{what}: nothing was measured; run `dvc repro -f -s profile`")
    if not baseline_ms.index.is_unique or set(baseline_ms.index) != set(candidate_ms.index):
        raise ComparisonError(
            f"{what}: the rounds of two variants do not pair, so they were not measured together; "
            f"run `dvc repro -f -s profile`"
        )
    if not all((np.isfinite(times_ms) & (times_ms > 0)).all() for times_ms in (baseline_ms, candidate_ms)):
        raise ComparisonError(f"{what}: a time is not a positive number; run `dvc repro -f -s profile`")
    logs = np.log(baseline_ms / candidate_ms.reindex(baseline_ms.index))
    by_process = tuple(tuple(map(float, of_process)) for _, of_process in logs.groupby(level="process"))
    if len(by_process) < 2:
        raise ComparisonError(
            f"{what}: {len(by_process)} process was measured, and an interval needs at least 2; raise "
            f"profile.processes in params.yaml and run `dvc repro`"
        )
    return Speedup(by_process, confidence)


def middle_mean(values: Sequence[float]) -> float:
    """Mean without the lowest and the highest quarter of the values; of fewer than four values the median."""
    cut = int(TRIMMED_SHARE * len(values))
    return float(np.mean(np.sort(values)[cut : len(values) - cut]) if cut else np.median(values))


def t_interval(values: Sequence[float] | NDArray[np.float64], confidence: float = CONFIDENCE) -> Interval:
    """Student t interval for the mean of independent values (two or more)."""
    half = stats.t.ppf((1 + confidence) / 2, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values))
    mean = float(np.mean(values))
    return mean - float(half), mean + float(half)
