"""Speed-ups from interleaved rounds, each with a confidence interval and a p-value.

`profile` decides by them when to stop measuring, and `compare` judges by them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from stages.errors import ComparisonError

CONFIDENCE = 0.95
# Interim looks that may end a measurement early, as shares of its processes. Each spends 0.5 % of the 5 % that an
# interval may miss, and the last look has the rest. Stopping at a narrow interval without accounting for the looks
# covers 72 to 91 % instead of 95.
INTERIM_LOOKS = (1 / 2, 5 / 8, 3 / 4)
INTERIM_CONFIDENCE = 0.995
MIN_PROCESSES_AT_A_LOOK = 4
# At least two looks are paid: without looks, intervals of 4 or 5 processes with stalls cover only 94 %, because the
# mean of so few skewed times is not quite normal.
MIN_LOOKS_PAID = 2
TRIMMED_SHARE = 0.25  # of the rounds of a process, at each end, for the ratio of typical steps

PAIRS, ALONE = 2, 1  # arms that lived at once, where a GPU does not hold all of them

TRAIN = "train"  # the measure; those of inference are `inference_b<n>`

Interval = tuple[float, float]
Times = tuple[pd.DataFrame, pd.DataFrame]  # rounds.csv and inference.csv of an arm


def interim_looks(processes: int) -> tuple[int, ...]:
    """After how many of the processes the intervals are inspected, the last inspection left out."""
    counts = {math.ceil(share * processes) for share in INTERIM_LOOKS} - {processes}
    return tuple(sorted(count for count in counts if count >= MIN_PROCESSES_AT_A_LOOK))


def final_confidence(looks_taken: int) -> float:
    """Confidence of the intervals at the last look, so that all looks together miss 5 %."""
    return CONFIDENCE + max(looks_taken, MIN_LOOKS_PAID) * (1 - INTERIM_CONFIDENCE)


@dataclass(frozen=True)
class ProcessTimes:
    """What one process of each arm measured in the same rounds.

    Attributes:
        count: number of training steps, or of inference calls, in each arm.
        baseline_ms, candidate_ms: total time of them, in milliseconds.
        typical_log_ratio: logarithm of the ratio of a typical round: the interquartile mean over the rounds.
        rounds: number of rounds.
    """

    count: int
    baseline_ms: float
    candidate_ms: float
    typical_log_ratio: float
    rounds: int


@dataclass(frozen=True)
class Speedup:
    """Time of the baseline / time of the candidate, a ratio of throughputs: above 1 the candidate is faster.

    The time is that of all counted rounds, with stalls. The interval is Student's t over the processes, by the
    linearisation of the ratio of two means (Cochran, Sampling Techniques, 1977, section 6.3) on the logarithmic scale.
    Rounds of one process share its memory layout, clock and neighbours, so only processes are independent; each starts
    from an interpreter of its own.

    Attributes:
        by_process: the times of each process.
        confidence: of the look that ended the measurement, so that the interval has 95 % over all looks.
    """

    by_process: tuple[ProcessTimes, ...]
    confidence: float = CONFIDENCE

    @property
    def rounds(self) -> int:
        """Number of paired rounds."""
        return sum(process.rounds for process in self.by_process)

    @property
    def processes(self) -> int:
        """Number of processes, which are the independent measurements."""
        return len(self.by_process)

    @property
    def baseline_time_ms(self) -> float:
        """Mean time of a step or call of the baseline. Divided by `candidate_time_ms` it is the ratio."""
        return self._sum("baseline_ms") / self._sum("count")

    @property
    def candidate_time_ms(self) -> float:
        """Mean time of a step or call of the candidate."""
        return self._sum("candidate_ms") / self._sum("count")

    @property
    def ratio(self) -> float:
        """The speed-up."""
        return self._sum("baseline_ms") / self._sum("candidate_ms")

    @cached_property
    def deviations(self) -> NDArray[np.float64]:
        """Deviation of each process from the logarithm of the ratio, `(processes,)`; their mean is 0."""
        shares = [
            process.baseline_ms / self._sum("baseline_ms") - process.candidate_ms / self._sum("candidate_ms")
            for process in self.by_process
        ]
        return self.processes * np.array(shares)

    @property
    def standard_error(self) -> float:
        """Standard error of the logarithm of the ratio."""
        return float(np.std(self.deviations, ddof=1) / np.sqrt(self.processes))

    def interval(self, confidence: float) -> Interval:
        """Interval of another confidence; the interim looks are not accounted for."""
        half = float(stats.t.ppf((1 + confidence) / 2, self.processes - 1)) * self.standard_error
        return self.ratio * math.exp(-half), self.ratio * math.exp(half)

    @property
    def low(self) -> float:
        """Lower end of the interval."""
        return self.interval(self.confidence)[0]

    @property
    def high(self) -> float:
        """Upper end of the interval."""
        return self.interval(self.confidence)[1]

    @property
    def half_width(self) -> float:
        """Half the width of the interval, as a ratio."""
        return (self.high - self.low) / 2

    @property
    def noise_floor(self) -> float:
        """Largest deviation from 1 in the interval: the noise floor if both arms run the same code (A/A control)."""
        return max(abs(self.low - 1), abs(self.high - 1))

    def p_below(self, threshold: float) -> float:
        """One-sided p-value of the hypothesis that the true ratio is `threshold` or less, the interim looks paid.

        The looks leave `1 - confidence` of the 5 % to this one, so p counts that much more.
        """
        distance = math.log(self.ratio / threshold)
        if self.standard_error == 0:
            return 0.0 if distance > 0 else 1.0
        p = float(stats.t.sf(distance / self.standard_error, self.processes - 1))
        return min(1.0, p * (1 - CONFIDENCE) / (1 - self.confidence))

    @property
    def typical_ratio(self) -> float:
        """Ratio of typical rounds: exp of the mean over the processes of the interquartile mean of their rounds."""
        return math.exp(float(np.mean([process.typical_log_ratio for process in self.by_process])))

    @property
    def stall_interval(self) -> Interval:
        """Interval of `ratio / typical_ratio`, paired by process. Below 1 stalls cost the candidate more."""
        own = [math.log(process.baseline_ms / process.candidate_ms) for process in self.by_process]
        low, high = t_interval(np.array(own) - [item.typical_log_ratio for item in self.by_process], self.confidence)
        return math.exp(low), math.exp(high)

    def _sum(self, name: str) -> float:
        return math.fsum(getattr(process, name) for process in self.by_process)


def train_speedup(
    baseline: pd.DataFrame,
    candidate: pd.DataFrame,
    confidence: float = CONFIDENCE,
    control: pd.DataFrame | None = None,
    at_once: int | None = None,
) -> Speedup:
    """Speed-up of training from the counted rounds of rounds.csv tables, paired by process and round.

    Args:
        baseline, candidate: tables with the columns of `Round`.
        confidence: of the interval.
        control: the same of a second copy of the baseline: the mean of both copies is then the baseline. Both copies
            must have the same variance, which they have if each starts from an interpreter of its own.
        at_once: how many arms lived at once; None for all. In `PAIRS` only the processes count that both arms share,
            and the control, which shares none with a candidate, is no second baseline. `ALONE`, the rounds of two arms
            were not simultaneous, so only what a process took is compared.

    Raises:
        ComparisonError: rounds do not pair, a time is not positive, or there are fewer than two processes.
    """
    return _speedup("rounds.csv", _turns_of_training, (baseline, candidate, control), confidence, at_once)


def inference_speedup(
    baseline: pd.DataFrame,
    candidate: pd.DataFrame,
    batch_size: int,
    confidence: float = CONFIDENCE,
    control: pd.DataFrame | None = None,
    at_once: int | None = None,
) -> Speedup:
    """Speed-up of inference at one batch size from the counted calls of inference.csv tables; as `train_speedup`."""

    def turns(table: pd.DataFrame) -> pd.DataFrame:
        chosen = table[(table["batch_size"] == batch_size) & table["counted"].astype(bool)]
        latencies_ms = chosen.groupby(["process", "round"])["latency_ms"]
        return pd.DataFrame({"count": latencies_ms.size(), "time_ms": latencies_ms.sum()})

    what = f"inference.csv at batch size {batch_size}"
    return _speedup(what, turns, (baseline, candidate, control), confidence, at_once)


def inference_measure(batch_size: int) -> str:
    """Name of the measure of inference at a batch size."""
    return f"inference_b{batch_size}"


def speedups_by_measure(
    baseline: Times,
    candidate: Times,
    batch_sizes: Iterable[int],
    confidence: float,
    control: Times | None = None,
    at_once: int | None = None,
) -> dict[str, Speedup]:
    """Speed-ups of training and of inference at each batch size, from the rounds and calls of each arm."""
    rounds, calls = control or (None, None)
    found = {TRAIN: train_speedup(baseline[0], candidate[0], confidence, rounds, at_once)}
    for size in batch_sizes:
        found[inference_measure(size)] = inference_speedup(baseline[1], candidate[1], size, confidence, calls, at_once)
    return found


def _turns_of_training(table: pd.DataFrame) -> pd.DataFrame:
    """Number of steps and their time by process and round."""
    counted = table[table["counted"].astype(bool)].set_index(["process", "round"])
    return pd.DataFrame({"count": counted["steps"], "time_ms": counted["round_time_ms"]})


def _speedup(
    what: str,
    turns: Callable[[pd.DataFrame], pd.DataFrame],
    tables: Iterable[pd.DataFrame | None],
    confidence: float,
    at_once: int | None,
) -> Speedup:
    """The speed-up from tables of single times, of which `turns` makes the count and the time of each turn."""
    of_arms = [turns(table) for table in tables if table is not None]
    before, *others = _of_shared_processes(*of_arms[:2]) if at_once == PAIRS else of_arms
    if before.empty:
        raise ComparisonError(f"{what}: nothing was measured; run `dvc repro -f -s profile`")
    if any(not table.index.is_unique or set(table.index) != set(before.index) for table in (before, *others)):
        raise ComparisonError(
            f"{what}: the rounds of two variants do not match, so they were not measured together; "
            f"run `dvc repro -f -s profile`"
        )
    after, *copies = (table.reindex(before.index) for table in others)
    if any(not np.array_equal(table["count"], before["count"]) for table in (after, *copies)):
        raise ComparisonError(f"{what}: the turns of a round differ in length; run `dvc repro -f -s profile`")
    if not all((np.isfinite(table["time_ms"]) & (table["time_ms"] > 0)).all() for table in (before, after, *copies)):
        raise ComparisonError(f"{what}: a time is not a positive number; run `dvc repro -f -s profile`")
    baseline_ms = pd.concat([table["time_ms"] for table in (before, *copies)], axis=1).mean(axis=1)
    paired = pd.DataFrame({"count": before["count"], "baseline_ms": baseline_ms, "candidate_ms": after["time_ms"]})
    by_process = tuple(_process_times(rounds, at_once) for _, rounds in paired.groupby(level="process"))
    if len(by_process) < 2:
        raise ComparisonError(
            f"{what}: an interval needs at least 2 processes and {len(by_process)} was measured; raise "
            f"profile.processes in params.yaml and run `dvc repro`"
        )
    return Speedup(by_process, confidence)


def _of_shared_processes(before: pd.DataFrame, after: pd.DataFrame) -> list[pd.DataFrame]:
    """The turns of the processes in which both arms lived."""
    shared = before.index.unique("process").intersection(after.index.unique("process"))
    return [table[table.index.get_level_values("process").isin(shared)] for table in (before, after)]


def _process_times(rounds: pd.DataFrame, at_once: int | None) -> ProcessTimes:
    before, after = rounds["baseline_ms"], rounds["candidate_ms"]
    if at_once == ALONE:
        typical = interquartile_mean(np.log(before).to_numpy()) - interquartile_mean(np.log(after).to_numpy())
    else:
        typical = interquartile_mean(np.log(before / after).to_numpy())
    return ProcessTimes(
        count=int(rounds["count"].sum()),
        baseline_ms=float(before.sum()),
        candidate_ms=float(after.sum()),
        typical_log_ratio=typical,
        rounds=len(rounds),
    )


def interquartile_mean(values: NDArray[np.float64]) -> float:
    """Mean without the lowest and the highest quarter of the values; the median of fewer than four values."""
    cut = int(TRIMMED_SHARE * len(values))
    return float(np.mean(np.sort(values)[cut : len(values) - cut]) if cut else np.median(values))


def t_interval(values: NDArray[np.float64], confidence: float = CONFIDENCE) -> Interval:
    """Student's t interval for the mean of two or more independent values."""
    half = stats.t.ppf((1 + confidence) / 2, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values))
    mean = float(np.mean(values))
    return mean - float(half), mean + float(half)
