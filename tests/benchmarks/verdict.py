"""How often a report adopts what it should not, in simulation.

    python -m tests.benchmarks.verdict                2,000 reports a row: some minutes
    python -m tests.benchmarks.verdict --reports 200  a taste

A report has six verdicts: two candidates, each for training and for inference at two batch sizes. A verdict is wrong if
it adopts although the speed-up is at `compare.min_speedup`, or the accuracy at the margin. Reports with one wrong
verdict or more must stay under 5 %. All verdicts of a measure share the baseline and the control, which are noisy as
the candidates are; both verdicts on inference of a candidate share their test images. Interim looks end a measurement
as in `profile`. Without them the whole 5 % is spent, and the share varies around it as far as 2,000 reports tell.

With one or two seeds a verdict is about those trainings, as the report says; what they would say of the recipe is shown
for comparison. Nothing is asserted; a table is printed.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.random import Generator
from numpy.typing import NDArray

from stages.compare.verdict import Key, Parts, run_tests, verdicts, void_measures
from stages.params import CompareParams, ProfileParams, quality_margin_for
from stages.results.comparison import Verdict
from stages.stats.proportions import BinaryChange
from stages.stats.speedup import INTERIM_CONFIDENCE, ProcessTimes, Speedup, final_confidence, interim_looks

PARAMS = CompareParams()
MEASURES = ("train", "inference_b1", "inference_b32")
CANDIDATES = ("a", "b")
PROCESSES, PROCESS_SD, ROUND_SD, ROUNDS = 8, 0.02, 0.05, 12  # deviations of the logarithm of a time
DISCORDANT = 0.02  # share of the test images on which two trainings differ beyond what the loss itself takes
SEED_SD = 0.003  # of the accuracy between seeds, of either arm
TARGET_PRECISION = ProfileParams().target_precision
MARGIN, EDGE, FAST = quality_margin_for("accuracy", PARAMS), PARAMS.min_speedup, 1.5


@dataclass(frozen=True)
class Truth:
    """What is true of one verdict: the speed-up, the precision's factor of it (None without one), and the loss."""

    speedup: float
    precision: float | None = None
    loss: float = 0.0

    @property
    def may_adopt(self) -> bool:
        """Whether `adopt` is right."""
        slowest = min(self.speedup, self.speedup if self.precision is None else self.precision)
        return slowest > EDGE and self.loss < MARGIN


@dataclass(frozen=True)
class Case:
    """The truth of each verdict, by candidate and measure, the test set, and whether there are interim looks.

    `discordant` is as in `DISCORDANT`.
    """

    name: str
    truths: Mapping[Key, Truth]
    images: int = 2000
    seeds: int = 1
    seed_sd: float = 0.0
    discordant: float = DISCORDANT
    looks: bool = True


def same_for_all(truth: Truth) -> dict[Key, Truth]:
    """One truth for all six verdicts."""
    return {(candidate, measure): truth for candidate in CANDIDATES for measure in MEASURES}


def cases() -> Iterator[Case]:
    """Each kind of report, by its name."""
    yield Case("speed-up at min_speedup, all six", same_for_all(Truth(EDGE)), discordant=0.0)
    yield Case("the same, without interim looks", same_for_all(Truth(EDGE)), discordant=0.0, looks=False)
    yield Case("precision's factor at min_speedup, all six", same_for_all(Truth(FAST, EDGE)), discordant=0.0)
    one = same_for_all(Truth(FAST)) | {("a", "train"): Truth(EDGE)}
    yield Case("speed-up at min_speedup, one; five are right to adopt", one, discordant=0.0)
    half = {key: Truth(EDGE if key[0] == "a" else FAST) for key in same_for_all(Truth(FAST))}
    yield Case("speed-up at min_speedup, one candidate; the other is fast", half, discordant=0.0)
    yield Case(
        "one candidate at min_speedup, the other at the margin",
        {key: Truth(EDGE) if key[0] == "a" else Truth(FAST, loss=MARGIN) for key in half},
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


def times_ms(generator: Generator, speed: float) -> NDArray[np.float64]:
    """Total time of each process of an arm: `(processes,)`, each from an interpreter of its own."""
    of_process = generator.normal(0.0, PROCESS_SD, size=(PROCESSES, 1))
    return np.exp(of_process + generator.normal(0.0, ROUND_SD, size=(PROCESSES, ROUNDS))).sum(axis=1) / speed


def ratio(before: NDArray[np.float64], after: NDArray[np.float64], confidence: float) -> Speedup:
    """A speed-up from total times."""
    pairs = zip(before.tolist(), after.tolist(), strict=True)
    return Speedup(tuple(ProcessTimes(ROUNDS, x, y, 0.0, ROUNDS) for x, y in pairs), confidence)


def accuracy(generator: Generator, case: Case, loss: float) -> BinaryChange:
    """Trainings, or the same weights, of a candidate that truly loses `loss`, give or take what seeds differ by."""
    losses = loss + generator.normal(0.0, case.seed_sd, size=case.seeds) * np.sqrt(2)
    losses = np.clip(losses, -case.discordant, case.discordant)
    draws = generator.random((case.seeds, case.images))
    lost = draws < ((case.discordant + losses) / 2)[:, None]
    gained = draws > 1 - ((case.discordant - losses) / 2)[:, None]
    return BinaryChange(baseline_correct=~gained, candidate_correct=~lost)


def arms(generator: Generator, case: Case, measure: str) -> dict[str, NDArray[np.float64]]:
    """Total times of every arm in one measure, with a bridging arm for each candidate that has a factor."""
    found = {"baseline": times_ms(generator, 1.0), "control": times_ms(generator, 1.0)}
    for candidate in CANDIDATES:
        truth = case.truths[candidate, measure]
        found[candidate] = times_ms(generator, truth.speedup)
        if truth.precision is not None:
            found[f"bridge {candidate}"] = times_ms(generator, truth.speedup / truth.precision)
    return found


def ratios(times: Mapping[str, NDArray[np.float64]], processes: int, confidence: float) -> dict[str, Speedup]:
    """Speed-ups of the candidates, their precision's factors, and the control, after so many processes."""
    seen = {arm: values[:processes] for arm, values in times.items()}
    pooled = (seen["baseline"] + seen["control"]) / 2
    found = {"control": ratio(seen["baseline"], seen["control"], confidence)}
    for candidate in CANDIDATES:
        found[candidate] = ratio(pooled, seen[candidate], confidence)
        if (bridge := seen.get(f"bridge {candidate}")) is not None:
            found[f"bridge {candidate}"] = ratio(bridge, seen[candidate], confidence)
    return found


def measurement(generator: Generator, case: Case) -> dict[str, dict[str, Speedup]]:
    """The ratios of every measure, after the look that ends the measurement as in `profile`."""
    times = {measure: arms(generator, case, measure) for measure in MEASURES}
    looks = interim_looks(PROCESSES) if case.looks else ()
    for processes in (*looks, PROCESSES):
        confidence = final_confidence(len(looks)) if processes == PROCESSES else INTERIM_CONFIDENCE
        found = {measure: ratios(times[measure], processes, confidence) for measure in MEASURES}
        if all(by_arm[name].half_width < TARGET_PRECISION for by_arm in found.values() for name in CANDIDATES):
            break
    return found


def report(generator: Generator, case: Case) -> dict[Key, Verdict]:
    """The verdicts of one report."""
    quality = {
        (candidate, about): accuracy(generator, case, case.truths[candidate, measure].loss)
        for candidate in CANDIDATES
        for about, measure in (("train", "train"), ("inference", "inference_b1"))
    }
    found = measurement(generator, case)
    parts = {
        (name, measure): Parts(by_arm[name], by_arm.get(f"bridge {name}"), quality[name, measure.split("_")[0]], MARGIN)
        for measure, by_arm in found.items()
        for name in CANDIDATES
    }
    void = void_measures({measure: by_arm["control"] for measure, by_arm in found.items()})
    return verdicts(parts, run_tests(parts, PARAMS), void, PARAMS)


def shares(case: Case, count: int, seed: int) -> dict[str, str]:
    """Share of reports with a wrong `adopt`, and of each verdict."""
    generator, wrong = np.random.default_rng(seed), 0
    found: Counter[str] = Counter()
    for _ in range(count):
        given = report(generator, case)
        found.update(given.values())
        wrong += any(verdict == "adopt" and not case.truths[key].may_adopt for key, verdict in given.items())
    return {"wrong adopt": f"{wrong / count:.2%}"} | {
        verdict: f"{found[verdict] / found.total():.1%}" for verdict in ("adopt", "inconclusive", "reject")
    }


def main() -> None:
    """Simulates and prints the shares."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.verdict", description=__doc__)
    parser.add_argument("--reports", type=int, default=2000, help="simulated reports in each row")
    count = parser.parse_args().reports
    rows = {case.name: shares(case, count, seed) for seed, case in enumerate(cases())}
    print(f"{count:,} reports a row; those with a wrong adopt must stay under 5 %. Then: shares of the verdicts")
    print(pd.DataFrame(rows).T.to_string())


if __name__ == "__main__":
    main()
