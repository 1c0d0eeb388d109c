"""Simulates how often the intervals of speed-ups contain the true ratio, interim looks included.

    python -m tests.benchmarks.coverage                  2,000 measurements a row: about half an hour
    python -m tests.benchmarks.coverage --trials 200     a short run

Each process of the baseline and of the candidate is forked from one server, and that of the control from another. The
time of a turn deviates with the server, with the process and with the round; one turn in 20 is an outlier with five
times the spread. Turns also stall: 2 % of all arms' turns, or 15 % of the candidate's. A measurement ends at the first
look that finds the interval narrow enough. Each row shows the share of intervals that contain the true ratio and their
median half-width, with the control as second baseline (pooled) and without, and for comparison with unpaid looks after
every process. Rounds before the steady state are found and left out as `profile` does. The second table has stalls of
the candidate that are so rare that most measurements contain few of them (what was not observed is in no interval), and
first rounds of a process that are slower, by 12 % for the baseline and by 8 % for the candidate. The third table is of
a GPU that does not hold all arms: two live at once, or one after the other, on a machine whose speed drifts meanwhile.
The arms of a process that live one after the other have a random order, which the next process reverses.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product, repeat
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from stages.profile.steady_state import mark_counted
from stages.results.profile import RawTimes, Round
from stages.stats.speedup import (
    ALONE,
    INTERIM_CONFIDENCE,
    PAIRS,
    ProcessTimes,
    Speedup,
    final_confidence,
    interim_looks,
)

PROCESSES = (4, 5, 6, 8, 10, 12)
PROCESS_SD = (0.0, 0.01, 0.025)  # of the logarithm of one arm's time, between processes
SERVER_SHARE = 0.3  # of the variance between processes: what all processes of one server have in common
ROUND_SD = (0.02, 0.10)
ROUNDS = 120  # in all processes together: the time of a measurement is given, whatever the number of processes
OUTLIERS, OUTLIER_FACTOR = 0.05, 5.0
STALL_FACTOR = 3.0  # how long a turn that stalls takes
WARM_UP = {"baseline": 0.12, "control": 0.12, "candidate": 0.08}  # of the first round, falling by 1 / e in each round
TARGET = 0.02  # profile.target_precision


@dataclass(frozen=True)
class Stalls:
    """Which share of the turns stall: those of the candidate alone, or of all arms."""

    share: float
    all_arms: bool

    def __str__(self) -> str:
        return f"{self.share:.0%} of {'all arms' if self.all_arms else 'the candidate'}" if self.share else "none"


STALLS = (Stalls(0.0, True), Stalls(0.02, True), Stalls(0.15, False))
RARE_STALLS = (Stalls(0.02, False), Stalls(0.05, False))

Times = NDArray[np.float64]
Measured = Callable[[int, float], Speedup]


@dataclass(frozen=True)
class Machine:
    """How much the times of one row of the table vary."""

    processes: int
    process_sd: float
    round_sd: float
    stalls: Stalls
    warm_up: bool = False

    @property
    def truth(self) -> float:
        """The true ratio of throughputs: apart from the stalls all arms are equal."""
        return 1.0 if self.stalls.all_arms else 1 / (1 + self.stalls.share * (STALL_FACTOR - 1))

    def times_ms(self, generator: np.random.Generator) -> dict[str, Times]:
        """Times of the turns of each arm, `(processes, rounds)`."""
        server, other_server = (self._deviations(generator, SERVER_SHARE) for _ in range(2))
        times_ms = {"candidate": self._turns(generator, server), "baseline": self._turns(generator, server)}
        times_ms["control"] = self._turns(generator, other_server)
        for turns in times_ms.values() if self.stalls.all_arms else [times_ms["candidate"]]:
            turns[generator.random(turns.shape) < self.stalls.share] *= STALL_FACTOR
        if self.warm_up:
            for arm, first in WARM_UP.items():
                times_ms[arm] *= np.exp(first * np.exp(-np.arange(ROUNDS // self.processes)))
        return times_ms

    def _deviations(self, generator: np.random.Generator, share: float) -> Times:
        """Logarithms of the part of the deviation between processes with this share of its variance."""
        return generator.normal(0, self.process_sd * np.sqrt(share), (self.processes, 1))

    def _turns(self, generator: np.random.Generator, server: Times) -> Times:
        shape = (self.processes, ROUNDS // self.processes)
        wide = np.where(generator.random(shape) < OUTLIERS, OUTLIER_FACTOR, 1.0)
        own = self._deviations(generator, 1 - SERVER_SHARE)
        return np.exp(server + own + generator.normal(0, self.round_sd, shape) * wide)


@dataclass(frozen=True)
class SharedMachine:
    """A machine whose GPU holds only `at_once` arms, and whose speed drifts from one block to the next.

    Attributes:
        drift_sd: of the logarithm of the time, from one block to the next.
        trend: what is added to it each time.
        same_order: whether the blocks always have the same order, for comparison.
    """

    processes: int
    at_once: int
    process_sd: float
    drift_sd: float
    trend: float
    same_order: bool = False

    def measurement(self, generator: np.random.Generator) -> Measured:
        """A simulated measurement of equal arms: `with_looks` finds its interval."""
        blocks = 3  # pairs with the control and two candidates; or the baseline, the control and a candidate
        steps = generator.normal(self.trend, self.drift_sd, (self.processes, blocks))
        levels = np.cumsum(steps).reshape(steps.shape)
        first = self.processes + self.processes % 2
        orders = generator.permuted(np.tile(np.arange(blocks), (first // 2, 1)), axis=1)
        places = np.stack([orders, blocks - 1 - orders], axis=1).reshape(first, blocks)[: self.processes]
        if self.same_order:
            places = np.tile(np.arange(blocks), (self.processes, 1))
        own = generator.normal(0, self.process_sd, (self.processes, blocks))
        if self.at_once == ALONE:
            baseline, control, candidate = np.exp(np.take_along_axis(levels, places, axis=1) + own).T
            return measurement_of((baseline + control) / 2, candidate)
        level = np.take_along_axis(levels, places, axis=1)[:, 0]
        return measurement_of(np.exp(level + own[:, 0]), np.exp(level + own[:, 1]))


def measurement_of(baseline: Times, candidate: Times) -> Measured:
    """As `measurement`, from the time of each process, `(processes,)`."""
    return measurement(baseline[:, None], candidate[:, None], np.ones((len(baseline), 1), dtype=bool))


def shared_figures(machine: SharedMachine, trials: int) -> dict[str, float]:
    """One row of the table of arms that do not live at once."""
    generator = np.random.default_rng(0)
    found = [with_looks(machine.measurement(generator), machine.processes) for _ in range(trials)]
    return {
        "at once": machine.at_once,
        "processes": machine.processes,
        "process sd, %": 100 * machine.process_sd,
        "drift sd, %": 100 * machine.drift_sd,
        "trend, %": 100 * machine.trend,
        "covers": _coverage(found, 1.0),
        "half-width, %": 100 * _half_width(found),
    }


def counted(times_ms: Mapping[str, Times]) -> NDArray[np.bool_]:
    """Which rounds count, by the code of `profile`, `(processes, rounds)`."""
    records: dict[str, Any] = {
        arm: SimpleNamespace(
            times=RawTimes([Round(process, number, 0, 1, time) for (process, number), time in np.ndenumerate(turns)])
        )
        for arm, turns in times_ms.items()
    }
    mark_counted(records)
    shape = times_ms["baseline"].shape
    return np.array([row.counted for row in records["baseline"].times.rounds]).reshape(shape)


def measurement(baseline: Times, candidate: Times, counts: NDArray[np.bool_]) -> Measured:
    """A function that returns the speed-up of the first processes, at a confidence."""
    rows = tuple(
        ProcessTimes(
            count=int(chosen.sum()),
            baseline_ms=float(before[chosen].sum()),
            candidate_ms=float(after[chosen].sum()),
            typical_log_ratio=0.0,  # is in no interval of the speed-up
            rounds=int(chosen.sum()),
        )
        for before, after, chosen in zip(baseline, candidate, counts, strict=True)
    )
    return lambda processes, confidence: Speedup(rows[:processes], confidence)


def with_looks(measured: Measured, processes: int) -> Speedup:
    """The interval at which a measurement ends: at the first look that finds it narrow enough, or at the last."""
    looks = interim_looks(processes)
    for at_look in looks:
        found = measured(at_look, INTERIM_CONFIDENCE)
        if found.half_width < TARGET:
            return found
    return measured(processes, final_confidence(len(looks)))


def unpaid(measured: Measured, processes: int) -> Speedup:
    """As `with_looks`, with a look at 95 % after every process from the second on."""
    looks = (measured(at_look, 0.95) for at_look in range(2, processes + 1))
    return next((found for found in looks if found.half_width < TARGET), measured(processes, 0.95))


def figures(machine: Machine, trials: int) -> dict[str, float | str]:
    """One row of the table."""
    generator = np.random.default_rng(0)
    plain, pooled, greedy, variances = [], [], [], []
    for trial in range(trials):
        times_ms = machine.times_ms(generator)
        counts = counted(times_ms)
        alone = measurement(times_ms["baseline"], times_ms["candidate"], counts)
        both = measurement((times_ms["baseline"] + times_ms["control"]) / 2, times_ms["candidate"], counts)
        plain.append(with_looks(alone, machine.processes))
        pooled.append(with_looks(both, machine.processes))
        variances.append([found(machine.processes, 0.95).standard_error ** 2 for found in (alone, both)])
        if trial % 4 == 0:
            greedy.append(unpaid(both, machine.processes))
    alone_error, both_error = np.sqrt(np.mean(variances, axis=0))
    return {
        "processes": machine.processes,
        "looks": len(interim_looks(machine.processes)),
        "process sd, %": 100 * machine.process_sd,
        "round sd, %": 100 * machine.round_sd,
        "stalls": str(machine.stalls) + (", warm-up" if machine.warm_up else ""),
        "covers": _coverage(plain, machine.truth),
        "covers, pooled": _coverage(pooled, machine.truth),
        "half-width, %": 100 * _half_width(plain),
        "half-width, pooled, %": 100 * _half_width(pooled),
        "gain of pooling, %": 100 * (1 - both_error / alone_error),
        "processes used": float(np.mean([found.processes for found in pooled])),
        "covers, looks unpaid": _coverage(greedy, machine.truth),
    }


def _coverage(found: list[Speedup], truth: float) -> float:
    return float(np.mean([speedup.low <= truth <= speedup.high for speedup in found]))


def _half_width(found: list[Speedup]) -> float:
    return float(np.median([speedup.half_width for speedup in found]))


def summary(table: pd.DataFrame) -> str:
    """Smallest and largest coverage of the rows with interim looks, and of those without."""
    lines = []
    for has_looks, rows in table.groupby(table["looks"] > 0):
        for column in ("covers", "covers, pooled", "covers, looks unpaid"):
            name = f"{'with' if has_looks else 'without'} looks, {column}"
            lines.append(f"{name}: {rows[column].min():.2%} to {rows[column].max():.2%}")
    gain = table["gain of pooling, %"]
    return "\n".join(
        [*lines, f"gain of pooling: {gain.min():.0f} % to {gain.max():.0f} %, median {gain.median():.0f} %"]
    )


def main() -> None:
    """Prints the table and its summary."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.coverage", description=__doc__)
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="rows that are simulated at the same time")
    arguments = parser.parse_args()
    usual = [Machine(*kind) for kind in product(PROCESSES, PROCESS_SD, ROUND_SD, STALLS)]
    unusual = [Machine(8, *kind) for kind in product(PROCESS_SD, ROUND_SD, RARE_STALLS)]
    unusual += [Machine(8, *kind, warm_up=True) for kind in product(PROCESS_SD, ROUND_SD, STALLS)]
    with ProcessPoolExecutor(arguments.jobs) as pool:
        for machines in (usual, unusual):
            table = pd.DataFrame(pool.map(figures, machines, repeat(arguments.trials)))
            print(table.to_string(index=False, float_format="%.4g"))
            print(summary(table), end="\n\n", flush=True)
        kinds = product((4, 5, 6, 8), (PAIRS, ALONE), (0.005, 0.02), (0.0, 0.02), (0.0, 0.03))
        shared = pd.DataFrame(
            pool.map(shared_figures, (SharedMachine(*kind) for kind in kinds), repeat(arguments.trials))
        )
        print(shared.to_string(index=False, float_format="%.4g"))
        for at_once, rows in shared.groupby("at once"):
            print(f"{at_once} at once: covers {rows['covers'].min():.2%} to {rows['covers'].max():.2%}")


if __name__ == "__main__":
    main()
