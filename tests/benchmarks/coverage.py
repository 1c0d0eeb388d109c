"""Simulates how often the intervals of speed-ups contain the true ratio, interim looks included.

    python -m tests.benchmarks.coverage

Logarithms of ratios are drawn with a spread between processes and one between rounds; some rounds are outliers with
five times the spread. For each number of processes and each spread the table shows the share of intervals that contain
the true ratio, their width, and the number of processes that were measured. For comparison it shows a look after every
process without a correction, and a bootstrap over processes and rounds.
"""

from __future__ import annotations

import argparse
from itertools import product

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from stages.stats.speedup import INTERIM_CONFIDENCE, Speedup, final_confidence, interim_looks

ROUNDS = 120  # in all processes together: the time of a measurement is given, whatever the number of processes
TARGET = 0.02
OUTLIERS = 0.05


def simulated(
    generator: np.random.Generator, processes: int, process_sd: float, round_sd: float
) -> NDArray[np.float64]:
    """Logarithms of ratios whose truth is 0, `(processes, rounds)`."""
    shape = (processes, ROUNDS // processes)
    wide = np.where(generator.random(shape) < OUTLIERS, 5.0, 1.0)
    return generator.normal(0, process_sd, (processes, 1)) + generator.normal(0, round_sd, shape) * wide


def with_looks(logs: NDArray[np.float64]) -> Speedup:
    """The interval at which a measurement ends: at the first look that finds it narrow enough, or at the last."""
    rows, held = tuple(map(tuple, logs)), interim_looks(len(logs))
    for processes in held:
        found = Speedup(rows[:processes], INTERIM_CONFIDENCE)
        if found.half_width < TARGET:
            return found
    return Speedup(rows, final_confidence(len(held)))


def unpaid(logs: NDArray[np.float64]) -> Speedup:
    """As `with_looks`, with a look at 95 % after every process from the second on."""
    rows = tuple(map(tuple, logs))
    found = Speedup(rows[:2])
    for processes in range(2, len(logs) + 1):
        found = Speedup(rows[:processes])
        if found.half_width < TARGET:
            break
    return found


def bootstrap_holds(generator: np.random.Generator, logs: NDArray[np.float64], draws: int = 400) -> bool:
    """Whether a bootstrap over processes, and over rounds within them, holds the truth."""
    processes, rounds = logs.shape
    chosen = generator.integers(processes, size=(draws, processes))
    picked = generator.integers(rounds, size=(draws, processes, rounds))
    means = np.take_along_axis(logs[chosen], picked, axis=2).mean(axis=(1, 2))
    low, high = np.percentile(means, [2.5, 97.5])
    return bool(low <= 0 <= high)


def figures(processes: int, process_sd: float, round_sd: float, trials: int) -> dict[str, float]:
    """One row of the table."""
    generator = np.random.default_rng(0)
    drawn = [simulated(generator, processes, process_sd, round_sd) for _ in range(trials)]
    ended = [with_looks(logs) for logs in drawn]
    greedy = [unpaid(logs) for logs in drawn]
    return {
        "processes": processes,
        "process sd, %": 100 * process_sd,
        "round sd, %": 100 * round_sd,
        "covers": np.mean([found.low <= 1 <= found.high for found in ended]),
        "half-width, %": 100 * np.median([found.half_width for found in ended]),
        "processes used": np.mean([found.processes for found in ended]),
        "covers, looks unpaid": np.mean([found.low <= 1 <= found.high for found in greedy]),
        "covers, bootstrap": np.mean([bootstrap_holds(generator, logs) for logs in drawn[: trials // 4]]),
    }


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.coverage", description=__doc__)
    parser.add_argument("--trials", type=int, default=2000)
    arguments = parser.parse_args()
    kinds = product((2, 4, 5, 8, 12), (0.0, 0.01, 0.02), (0.02, 0.10))
    print(
        pd.DataFrame([figures(*kind, arguments.trials) for kind in kinds]).to_string(index=False, float_format="%.3g")
    )


if __name__ == "__main__":
    main()
