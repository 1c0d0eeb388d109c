"""How often a report adopts what it should not, in simulation.

    python -m tools.benchmarks.verdict --out FILE                2,000 reports a row: some minutes
    python -m tools.benchmarks.verdict --out FILE --reports 200  a short run

A report has six verdicts: two candidates, each for training and for inference at two batch sizes. A verdict is wrong if
it adopts although the speed-up is at `compare.min_speedup`, or the accuracy at the margin. Reports with one wrong
verdict or more must stay under 5 %. All verdicts of a measure share the baseline and the control, which are noisy as
the candidates are; both verdicts on inference of a candidate share their test images. The rule and the schedule of
`profile` decide how much is measured and when each measure ends. Each row is written to `--out` at once; a rerun
continues after the rows that are there.

With one or two seeds a verdict is about those trainings, as the report says; what they would say of the recipe is shown
for comparison. Nothing is asserted; a table is printed.
"""

from __future__ import annotations

import argparse
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.random import Generator

from stages.compare.verdict import Key, Parts, run_tests, verdicts, void_measures
from stages.params import CompareParams, quality_margin_for
from stages.results.comparison import Verdict
from stages.stats.proportions import BinaryChange
from tools.benchmarks.simulation import CANDIDATES, MEASURES, Machine, simulate

PARAMS = CompareParams()
MACHINE = Machine(repeat_sd=0.01, round_sd=0.1, outliers=0.02, stalls=0.005)
DISCORDANT = 0.02  # share of the test images on which two trainings differ beyond what the loss itself takes
SEED_SD = 0.003  # of the accuracy between seeds, of either arm
MACHINES = {
    Machine(): "repeats 0 %",
    Machine(repeat_sd=0.03): "repeats 3 %",
    Machine(outliers=0.05): "heavy tails",
    Machine(stalls=0.02): "stalls",
    Machine(repeat_sd=0.01, round_sd=0.02, trainings_s=240.0): "quiet, repeats 1 %",
}
FIRST = CANDIDATES[0]  # the candidate with a bridging arm
MARGIN, EDGE, FAST = quality_margin_for("accuracy", PARAMS), PARAMS.min_speedup, 1.5


@dataclass(frozen=True)
class Truth:
    """What is true of one verdict: the speed-up, and the loss."""

    speedup: float
    loss: float = 0.0


@dataclass(frozen=True)
class Case:
    """The truth of each verdict, by candidate and measure, the test set, and the machine.

    `discordant` is as in `DISCORDANT`. `settings` is the factor of the first candidate's other settings; 1 without any.
    """

    name: str
    truths: Mapping[Key, Truth]
    images: int = 2000
    seeds: int = 1
    seed_sd: float = 0.0
    discordant: float = DISCORDANT
    machine: Machine = MACHINE
    settings: float = 1.0


def same_for_all(truth: Truth) -> dict[Key, Truth]:
    """One truth for all six verdicts."""
    return {(candidate, measure): truth for candidate in CANDIDATES for measure in MEASURES}


def cases() -> Iterator[Case]:
    """Each kind of report, by its name."""
    yield Case("speed-up at min_speedup, all six", same_for_all(Truth(EDGE)), discordant=0.0)
    for machine, name in MACHINES.items():
        yield Case(f"the same, {name}", same_for_all(Truth(EDGE)), discordant=0.0, machine=machine)
    settings = FAST / EDGE
    yield Case(
        "precision's factor at min_speedup, one candidate",
        {key: Truth(FAST if key[0] == FIRST else EDGE) for key in same_for_all(Truth(FAST))},
        discordant=0.0,
        settings=settings,
    )
    one = same_for_all(Truth(FAST)) | {(FIRST, "train"): Truth(EDGE)}
    yield Case("speed-up at min_speedup, one; five are right to adopt", one, discordant=0.0)
    half = {key: Truth(EDGE if key[0] == FIRST else FAST) for key in same_for_all(Truth(FAST))}
    yield Case("speed-up at min_speedup, one candidate; the other is fast", half, discordant=0.0)
    yield Case(
        "one candidate at min_speedup, the other at the margin",
        {key: Truth(EDGE) if key[0] == FIRST else Truth(FAST, loss=MARGIN) for key in half},
    )
    for seeds, images in ((1, 629), (1, 2000), (2, 629), (2, 2000)):
        name = f"accuracy at the margin, all six, {seeds} seed(s), {images:,} images"
        yield Case(name, same_for_all(Truth(FAST, loss=MARGIN)), images, seeds)
    for seeds, images in ((3, 629), (3, 2000), (5, 2000)):
        name = f"accuracy at the margin, all six, {seeds} seeds, {images:,} images"
        yield Case(name, same_for_all(Truth(FAST, loss=MARGIN)), images, seeds, SEED_SD)
    trained = {key: Truth(FAST, loss=MARGIN if key[1] == "train" else 0.0) for key in half}
    yield Case("accuracy of training at the margin, inference the same", trained)
    for seeds in (1, 2):
        name = f"not claimed: the recipe by {seeds} seed(s), 2,000 images"
        yield Case(name, same_for_all(Truth(FAST, loss=MARGIN)), 2000, seeds, SEED_SD)
    yield Case("power: all six at 1.15 and the same accuracy", same_for_all(Truth(1.15)), discordant=0.005)


def accuracy(generator: Generator, case: Case, loss: float) -> BinaryChange:
    """Trainings, or the same weights, of a candidate that truly loses `loss`, give or take what seeds differ by."""
    losses = loss + generator.normal(0.0, case.seed_sd, size=case.seeds) * np.sqrt(2)
    losses = np.clip(losses, -case.discordant, case.discordant)
    draws = generator.random((case.seeds, case.images))
    lost = draws < ((case.discordant + losses) / 2)[:, None]
    gained = draws > 1 - ((case.discordant - losses) / 2)[:, None]
    return BinaryChange(baseline_correct=~gained, candidate_correct=~lost)


def report(generator: Generator, case: Case) -> dict[Key, Verdict]:
    """The verdicts of one report."""
    quality = {
        (candidate, about): accuracy(generator, case, case.truths[candidate, measure].loss)
        for candidate in CANDIDATES
        for about, measure in (("train", "train"), ("inference", "inference_b1"))
    }
    speeds = {key: truth.speedup for key, truth in case.truths.items()}
    bridges = dict.fromkeys(MEASURES, case.settings) if case.settings != 1 else {}
    found = simulate(case.machine, generator, speeds, bridges)
    parts = {
        (name, measure): Parts(
            speedup,
            found.precision.get((name, measure)),
            quality[name, measure.split("_")[0]],
            MARGIN,
            lacks_precision=bool(bridges) and name == FIRST and (name, measure) not in found.precision,
        )
        for (name, measure), speedup in found.speedups.items()
    }
    void = void_measures(found.control)
    return verdicts(parts, run_tests(parts, PARAMS), void, PARAMS)


def may_adopt(case: Case, key: Key) -> bool:
    """Whether `adopt` is right."""
    truth = case.truths[key]
    precision = truth.speedup / case.settings if key[0] == FIRST else truth.speedup
    return min(truth.speedup, precision) > EDGE * (1 + 1e-9) and truth.loss < MARGIN


def shares(numbered: tuple[int, Case], count: int) -> dict[str, str | int]:
    """Share of reports with a wrong `adopt`, and of each verdict."""
    seed, case = numbered
    generator, wrong = np.random.default_rng(seed), 0
    found: Counter[str] = Counter()
    for _ in range(count):
        given = report(generator, case)
        found.update(given.values())
        wrong += any(verdict == "adopt" and not may_adopt(case, key) for key, verdict in given.items())
    row: dict[str, str | int] = {"reports": case.name, "count": count, "wrong adopt": f"{wrong / count:.2%}"}
    return row | {verdict: f"{found[verdict] / found.total():.1%}" for verdict in ("adopt", "inconclusive", "reject")}


def main() -> None:
    """Simulates what is missing and prints the shares."""
    parser = argparse.ArgumentParser(prog="python -m tools.benchmarks.verdict", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="file for one line of JSON per row")
    parser.add_argument("--reports", type=int, default=2000, help="simulated reports in each row")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="rows that are simulated at the same time")
    arguments = parser.parse_args()
    text = arguments.out.read_text(encoding="utf-8") if arguments.out.exists() else ""
    rows = [found for line in text.splitlines() if (found := json.loads(line))["count"] == arguments.reports]
    done = {found["reports"] for found in rows}
    missing = [(seed, case) for seed, case in enumerate(cases()) if case.name not in done]
    with ProcessPoolExecutor(arguments.jobs) as pool:
        for found in pool.map(partial(shares, count=arguments.reports), missing):
            rows.append(found)
            with arguments.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(found) + "\n")
    print(
        f"{arguments.reports:,} reports a row; those with a wrong adopt must stay under 5 %. Then: shares of verdicts"
    )
    print(pd.DataFrame(rows).to_string(index=False))


if __name__ == "__main__":
    main()
