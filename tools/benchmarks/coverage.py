"""Simulates how often the intervals of speed-ups contain the true ratio, with adaptive repeats and interim looks.

    python -m tools.benchmarks.coverage --out FILE               2,000 measurements a row: about half an hour
    python -m tools.benchmarks.coverage --out FILE --trials 200  a short run

Each measurement is one of the default run's kind: two candidates in three measures, all as fast as the baseline. The
rule and the schedule of `profile` decide how much is measured and when each measure ends. A row is a machine: how much
times vary between repeats and between rounds, heavy tails (5 % of the turns vary five times as much), stalls (2 % of
the turns of all arms take three times as long), a machine that changes between two states, in which a candidate is
faster or slower by half of 10 %, and arms that are measured one at a time on a machine whose speed drifts.

Printed are the share of intervals that contain the true ratio, by the interval of halfstep and by Student's t over the
repeats alone; the median half-width of both; the repeats and the seconds; and the share of reports in which the A/A
control wrongly makes a measure inconclusive. Each row is written to `--out` at once; a rerun continues after the rows
that are there. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

from stages.compare.verdict import void_measures
from stages.stats.speedup import Speedup
from tools.benchmarks.simulation import CANDIDATES, MEASURES, Machine, simulate

REPEAT_SDS = (0.0, 0.01, 0.03)
TAILS = {"normal": Machine(), "heavy tails": Machine(outliers=0.05), "stalls": Machine(stalls=0.02)}
LONG_S = 240.0  # trainings that leave time for more than the fewest repeats


def machines() -> Iterator[tuple[str, Machine]]:
    """Each row of the table, by its name."""
    for trainings_s, (tails, machine), repeat_sd in product((45.0, LONG_S), TAILS.items(), REPEAT_SDS):
        name = f"{tails}, repeats {repeat_sd:.0%}, stage of {trainings_s:.0f} s"
        yield name, replace(machine, repeat_sd=repeat_sd, trainings_s=trainings_s)
    quiet = Machine(round_sd=0.02)
    for repeat_sd in REPEAT_SDS:
        yield f"quiet, repeats {repeat_sd:.0%}", replace(quiet, repeat_sd=repeat_sd, trainings_s=LONG_S)
    for rounds in (3.0, 10.0, 30.0):
        yield f"states of {rounds:.0f} rounds", Machine(states=0.1, state_rounds=rounds)
    for run_sd in (0.01, 0.03):
        yield f"not promised: runs differ by {run_sd:.0%}", Machine(run_sd=run_sd)
    for repeat_sd, drift_sd, trend in product((0.005, 0.02), (0.0, 0.02), (0.0, 0.03)):
        name = f"one at a time, repeats {repeat_sd:.1%}, drift {drift_sd:.0%}, trend {trend:.0%}"
        yield (
            name,
            Machine(
                repeat_sd, 0.02, drift_sd=drift_sd, trend=trend, interleaved=False, start_s=20.0, trainings_s=LONG_S
            ),
        )


def by_repeats(speedup: Speedup) -> tuple[float, float]:
    """Student's interval over the repeats alone."""
    error = speedup._error_of_repeats()
    assert error is not None, "a measurement has more than one repeat"
    half = float(stats.t.ppf((1 + speedup.confidence) / 2, error.degrees)) * error.standard_error
    return speedup.ratio * math.exp(-half), speedup.ratio * math.exp(half)


def row(named: tuple[str, Machine], trials: int) -> dict[str, float | str]:
    """One row of the table."""
    name, machine = named
    generator = np.random.default_rng(0)
    found = [simulate(machine, generator) for _ in range(trials)]
    intervals = [speedup for item in found for speedup in item.speedups.values()]
    student = [by_repeats(speedup) for speedup in intervals]
    endings = [reason for item in found for reason in item.endings.values()]
    return {
        "machine": name,
        "trials": trials,
        "covers, %": 100 * float(np.mean([item.low <= 1 <= item.high for item in intervals])),
        "Student covers, %": 100 * float(np.mean([low <= 1 <= high for low, high in student])),
        "half-width, %": 100 * float(np.median([item.half_width for item in intervals])),
        "Student's, %": 100 * float(np.median([(high - low) / 2 for low, high in student])),
        "repeats": float(np.mean([item.repeats for item in found])),
        "seconds": float(np.mean([item.seconds for item in found])),
        "ended before the time, %": 100 * float(np.mean([reason != "time" for reason in endings])),
        "control voids, %": 100 * float(np.mean([bool(void_measures(item.control)) for item in found])),
    }


def main() -> None:
    """Simulates what is missing and prints the table."""
    parser = argparse.ArgumentParser(prog="python -m tools.benchmarks.coverage", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="file for one line of JSON per row")
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="rows that are simulated at the same time")
    arguments = parser.parse_args()
    text = arguments.out.read_text(encoding="utf-8") if arguments.out.exists() else ""
    rows = [found for line in text.splitlines() if (found := json.loads(line))["trials"] == arguments.trials]
    missing = [(name, machine) for name, machine in machines() if name not in {found["machine"] for found in rows}]
    with ProcessPoolExecutor(arguments.jobs) as pool:
        for found in pool.map(partial(row, trials=arguments.trials), missing):
            rows.append(found)
            with arguments.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(found) + "\n")
            print(f"{found['machine']}: {found['covers, %']:.1f} %", flush=True)
    print(f"{len(CANDIDATES) * len(MEASURES)} intervals a measurement")
    print(pd.DataFrame(rows).to_string(index=False, float_format="%.4g"))


if __name__ == "__main__":
    main()
