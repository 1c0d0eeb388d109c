"""How often the intervals of speed-ups hold the truth, and how often a report adopts wrongly, by simulation.

Each measurement is one of the default run's kind: two candidates in three measures, whose true speed-up is exactly
`compare.min_speedup`, so that each `adopt` is wrong. The quality counts as shown. Everything that `profile` and
`compare` do about times is applied: the schedule, which rounds are of the steady state, the interim looks, when each
measure ends, the interval, the A/A control and Holm's method. A row is a machine (`machines`).

Intervals and verdicts are shown twice: with the error within the run, and as `compare` judges, with what whole runs
differ by. The table is Markdown, as in docs/evidence.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from halfstep.compare.verdict import Claim, judge, void_measures
from halfstep.params.margin import quality_margin_for
from halfstep.params.schema import CompareParams
from halfstep.stats.proportions import BinaryChange
from halfstep.stats.speedup import RUN_SD, Speedup
from halfstep.words.text import TRAIN
from tools.benchmarks.simulation import CANDIDATES, MEASURES, MIN_SPEEDUP, Found, Machine, simulate

PARAMS = CompareParams()
MARGIN = quality_margin_for("accuracy", PARAMS)
SAME_QUALITY = BinaryChange(np.ones((1, 2000), dtype=bool), np.ones((1, 2000), dtype=bool))
_OF_TWO_STEPS = (
    "rounds 10 %",
    "rounds 3 %",
    "AR(1) 0.6 in each arm",
    "30 % of the processes 5 % slower",
    "runs differ by 1%, rounds 10%",
    "runs differ by 1%, rounds 3%",
)
SHORT_S, LONG_S = 20.0, 240.0  # trainings of the default run, and such that leave time for more repeats


def machines() -> Iterator[tuple[str, Machine]]:
    """Each row of the table, by its name."""
    yield from hostile()
    for trainings_s, (tails, machine), repeat_sd in product((SHORT_S, LONG_S), TAILS.items(), (0.0, 0.01, 0.03)):
        name = f"{tails}, repeats {repeat_sd:.0%}, trainings of {trainings_s:.0f} s"
        yield name, replace(machine, repeat_sd=repeat_sd, trainings_s=trainings_s)
    for repeat_sd in (0.0, 0.01, 0.03):
        yield f"rounds 2 %, repeats {repeat_sd:.0%}", Machine(repeat_sd, 0.02, trainings_s=LONG_S)
    yield from alone()
    for name, machine in dict(hostile()).items():
        if name in _OF_TWO_STEPS:
            yield f"two steps: {name}", replace(machine, steps=2)


TAILS = {"normal": Machine(), "heavy tails": Machine(outliers=0.05), "stalls": Machine(stalls=0.02)}


def hostile() -> Iterator[tuple[str, Machine]]:
    """Machines whose times are not what an interval takes them for; rounds vary by 10 % unless the name says else."""
    usual = Machine(trainings_s=SHORT_S)
    quiet = replace(usual, round_sd=0.03)
    rare, often = (0.15, 0.1), (0.3, 0.05)
    yield "rounds 10 %", usual
    yield "rounds 3 %", quiet
    yield "AR(1) 0.6 in each arm", replace(usual, autocorrelation=0.6)
    yield "AR(1) 0.9 in each arm", replace(usual, autocorrelation=0.9)
    yield (
        "AR(1) 0.9 of 15 % in common, own 5 %",
        replace(usual, round_sd=0.05, common_sd=0.15, common_autocorrelation=0.9),
    )
    yield "30 % of the processes 5 % slower", replace(usual, slow_processes=often)
    yield "the same, rounds 3 %", replace(quiet, slow_processes=often)
    yield "the same, candidates only", replace(usual, slow_processes=often, slow_baseline=False)
    yield "15 % of the processes 10 % slower, rounds 3 %", replace(quiet, slow_processes=rare)
    for state_s in (8.0, 25.0):
        yield f"two states of {state_s:.0f} s, arms differ by 10 %", replace(usual, states=0.1, state_s=state_s)
    yield "each process drifts by 10 %", replace(usual, process_drift=0.1)
    yield "bursts of 1.5 s each 10 s, rounds 5 %", replace(usual, round_sd=0.05, burst_pause_s=10.0)
    yield "warm-up of 8 and 14 %, 4 rounds", replace(usual, warm_up=(0.08, 0.14))
    yield "warm-up of 8 and 14 %, 4 rounds of 3 %", replace(quiet, warm_up=(0.08, 0.14))
    for run_sd, machine in product((0.01, 0.02, 0.03), (usual, quiet)):
        yield f"runs differ by {run_sd:.0%}, rounds {machine.round_sd:.0%}", replace(machine, run_sd=run_sd)


def alone() -> Iterator[tuple[str, Machine]]:
    """Arms that are measured one at a time, as on a GPU: what takes longer than planned makes repeats unequal."""
    exact = Machine(0.003, 0.005, interleaved=False, start_s=20.0, trainings_s=LONG_S)
    usual = replace(exact, optimism=1.1)
    yield "alone: repeats 0.3 %, rounds 0.5 %, as planned", exact
    yield "alone: rounds take 10 % longer than planned", usual
    yield "alone: the same, starts of 6 s", replace(usual, start_s=6.0)
    yield "alone: the same, max_seconds 300", replace(usual, max_seconds=300)
    yield "alone: the same, a quarter of the rounds throttled", replace(usual, max_seconds=300, throttled=0.25)
    yield "alone: repeats 0 %, rounds 3 %", replace(usual, repeat_sd=0.0, round_sd=0.03)
    yield "alone: repeats 2 %, rounds 2 %", replace(usual, repeat_sd=0.02, round_sd=0.02)
    noisy = replace(exact, repeat_sd=0.015, round_sd=0.015)
    for tuner_sd, (noise, machine) in product((0.005, 0.01, 0.02), {"": exact, ", repeats 1.5 %": noisy}.items()):
        yield f"alone: each arm compiled twice, tuner {tuner_sd:.1%}{noise}", replace(machine, tuner_sd=tuner_sd)
    yield "alone: drift of 2 %, trend of 1 % from arm to arm", replace(usual, drift_sd=0.02, trend=0.01)


def judged(measurement: Found, run_sd: float, tuned: int = 0) -> Found:
    """The measurement with what whole runs, and compilations, differ by in its errors, as `compare` has it."""
    if "run_sd" not in {field.name for field in fields(Speedup)}:
        return measurement
    known: dict[str, Any] = {"run_sd": run_sd} | ({"tuned": tuned} if tuned else {})
    return replace(
        measurement,
        speedups={key: replace(speedup, **known) for key, speedup in measurement.speedups.items()},
        control={measure: replace(speedup, **known) for measure, speedup in measurement.control.items()},
    )


@dataclass
class Tally:
    """What the reports of a machine say.

    Attributes:
        holds: whether each interval holds the truth.
        halves: half the width of each interval, as a share of the truth.
        adopts: whether each report adopts a candidate.
        voids: whether the control makes a measure of it inconclusive.
    """

    holds: list[bool] = field(default_factory=list)
    halves: list[float] = field(default_factory=list)
    adopts: list[bool] = field(default_factory=list)
    voids: list[bool] = field(default_factory=list)

    def add(self, measurement: Found) -> None:
        """Adds a report."""
        for speedup in measurement.speedups.values():
            self.holds.append(speedup.low <= MIN_SPEEDUP <= speedup.high)
            self.halves.append(speedup.half_width / MIN_SPEEDUP)
        claims = {key: Claim(speedup, None, SAME_QUALITY, MARGIN) for key, speedup in measurement.speedups.items()}
        void = void_measures(measurement.control)
        self.adopts.append(any(verdict == "adopt" for verdict, _ in judge(claims, void, PARAMS).values()))
        self.voids.append(bool(void))

    def percent(self) -> dict[str, float]:
        """Shares of the intervals and of the reports, and the median half-width."""
        means = {name: float(np.mean(getattr(self, name))) for name in ("holds", "adopts", "voids")}
        return {name: 100 * value for name, value in {**means, "half_width": float(np.median(self.halves))}.items()}


def measurements(times: int) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """So many simulated measurements of each machine."""
    for name, machine in machines():
        yield f"{name}, {times:,} times", partial(row, name, machine, times)


def row(name: str, machine: Machine, trials: int) -> dict[str, Any]:
    """One row of the table."""
    generator, within, with_runs, of_training = np.random.default_rng(0), Tally(), Tally(), list[bool]()
    truth = {(candidate, measure): MIN_SPEEDUP * machine.bias for candidate in CANDIDATES for measure in MEASURES}
    for _ in range(trials):
        measurement = simulate(machine, generator, truth)
        within.add(measurement)
        with_runs.add(judged(measurement, RUN_SD, 2 if machine.tuner_sd else 0))
        trained = (speedup for (_, measure), speedup in measurement.speedups.items() if measure == TRAIN)
        of_training += [speedup.low <= MIN_SPEEDUP <= speedup.high for speedup in trained]
    found_percent = {"within": within.percent(), "judged": with_runs.percent()}
    return {"machine": name, "trials": trials, "training": 100 * float(np.mean(of_training)), **found_percent}


def report(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows as a table, in percent: within the run, and after a comma as judged."""
    titles = "machine", "n", "intervals hold the truth", "of training", "half-width", "false adoptions", "void"
    lines = [f"| {' | '.join(titles)} |", "| --- " * len(titles) + "|"]
    for row in rows:
        both = row["within"], row["judged"]
        holds, adopts = (", ".join(f"{item[name]:.1f} %" for item in both) for name in ("holds", "adopts"))
        half = ", ".join(f"{item['half_width']:.2g} %" for item in both)
        cells = holds, f"{row['training']:.1f} %", half, adopts, f"{row['within']['voids']:.1f} %"
        lines.append(f"| {row['machine']} | {row['trials']:,} | {' | '.join(cells)} |")
    return "\n".join(lines)
