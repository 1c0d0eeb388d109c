"""Speed-ups from interleaved rounds, each with a confidence interval.

`profile` decides by them when to stop measuring, and `compare` judges by them.
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
TRIMMED_SHARE = 0.25  # of the rounds of a process, at each end
# Interim looks that may end a measurement early, as shares of its processes. Each spends 0.5 % of the 5 % that an
# interval may miss, and the last look has the rest. Stopping at a narrow interval without accounting for the looks
# covers 72 to 91 % instead of 95.
INTERIM_LOOKS = (1 / 2, 5 / 8, 3 / 4)
INTERIM_CONFIDENCE = 0.995
MIN_PROCESSES_AT_A_LOOK = 3
MIN_ROUNDS_AT_A_LOOK = 30

Interval = tuple[float, float]


def interim_looks(processes: int) -> tuple[int, ...]:
    """After how many of the processes the intervals are inspected, the last inspection left out."""
    counts = {math.ceil(share * processes) for share in INTERIM_LOOKS} - {processes}
    return tuple(sorted(count for count in counts if count >= MIN_PROCESSES_AT_A_LOOK))


def final_confidence(looks_taken: int) -> float:
    """Confidence of the intervals at the last look, so that all looks together miss 5 %."""
    return CONFIDENCE + looks_taken * (1 - INTERIM_CONFIDENCE)


@dataclass(frozen=True)
class Speedup:
    """Time of the baseline / time of the candidate, a ratio: above 1 the candidate is faster.

    Each process contributes the interquartile mean of its rounds, which is nearly as precise as the mean and robust
    to outliers. The interval is Student's t over the processes. Rounds of one process share its memory layout, clock
    and neighbours, so only processes are independent; a bootstrap over two to five of them covers too little.

    Attributes:
        log_ratios: one tuple a process, one natural logarithm of the ratio a round.
        confidence: of the look that ended the measurement, so that the interval has 95 % over all looks.
    """

    log_ratios: tuple[tuple[float, ...], ...]
    confidence: float = CONFIDENCE

    @property
    def rounds(self) -> int:
        """Number of paired rounds."""
        return sum(len(of_process) for of_process in self.log_ratios)

    @property
    def processes(self) -> int:
        """Number of processes, which are the independent measurements."""
        return len(self.log_ratios)

    @cached_property
    def by_process(self) -> NDArray[np.float64]:
        """Logarithm of the ratio of each process, `(processes,)`: the interquartile mean of its rounds."""
        return np.array([interquartile_mean(of_process) for of_process in self.log_ratios])

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
        """Largest deviation from 1 in the interval: the noise floor if both arms run the same code (A/A control)."""
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
    """Speed-up of inference at one batch size from two inference.csv tables, by the median call of each round.

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
            f"{what}: the rounds of two variants do not match, so they were not measured together; "
            f"run `dvc repro -f -s profile`"
        )
    if not all((np.isfinite(times_ms) & (times_ms > 0)).all() for times_ms in (baseline_ms, candidate_ms)):
        raise ComparisonError(f"{what}: a time is not a positive number; run `dvc repro -f -s profile`")
    logs = np.log(baseline_ms / candidate_ms.reindex(baseline_ms.index))
    by_process = tuple(tuple(map(float, of_process)) for _, of_process in logs.groupby(level="process"))
    if len(by_process) < 2:
        raise ComparisonError(
            f"{what}: an interval needs at least 2 processes and {len(by_process)} was measured; raise "
            f"profile.processes in params.yaml and run `dvc repro`"
        )
    return Speedup(by_process, confidence)


def interquartile_mean(values: Sequence[float]) -> float:
    """Mean without the lowest and the highest quarter of the values; the median of fewer than four values."""
    cut = int(TRIMMED_SHARE * len(values))
    return float(np.mean(np.sort(values)[cut : len(values) - cut]) if cut else np.median(values))


def t_interval(values: Sequence[float] | NDArray[np.float64], confidence: float = CONFIDENCE) -> Interval:
    """Student's t interval for the mean of two or more independent values."""
    half = stats.t.ppf((1 + confidence) / 2, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values))
    mean = float(np.mean(values))
    return mean - float(half), mean + float(half)
