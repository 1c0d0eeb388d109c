"""Measures the accuracy of the timing, for equal variants and for variants that are slower by a known share.

    python -m tools.benchmarks.timing --csv FILE                    40 comparisons: up to an hour
    python -m tools.benchmarks.timing --csv FILE --comparisons 2    a short run

Each comparison measures training on the digits as `profile` does, of the baseline, of a candidate that runs the same
code, and of one whose steps take 5 % longer. With `--loaded`, another program keeps a core busy in every second
comparison. The benchmark asserts nothing: it adds a row per candidate to `--csv` after each comparison, and prints a
summary. A rerun continues after the rows that are there.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from stages import files
from stages.fork_server import stop_servers
from stages.machine.fingerprint import fingerprint
from stages.params import CompareParams, DataParams, ModelParams, ProfileParams, TaskParams, TrainParams, Variant
from stages.prepare.images.pipeline import prepare
from stages.profile.extras import Wanted
from stages.profile.records import ArmRecord
from stages.profile.repeats import Repeats, amounts
from stages.profile.runner import Context, measure
from stages.profile.stopping_rule import tables
from stages.profile.worker_process import WorkerProcess
from stages.stats.speedup import Speedup, speedup_of
from stages.tasks.spec import TaskSpec
from stages.text import TRAIN
from tools.benchmarks.load import other_load
from tools.benchmarks.slowed import SlowedConfig, serve

ROOT = Path(__file__).parents[2]
BASELINE = "float32"
SPEC = TaskSpec(TaskParams(), ModelParams(), TrainParams())
SLOWER_BY: Mapping[str, float] = {"equal": 0.0, "slower by 5 %": 0.05}
TRAININGS_S = 60.0  # of which the plan makes a stage of 75 s
SEQUENTIAL_SECONDS, SEQUENTIAL_STEPS, SEQUENTIAL_WARM_UP = 2.0, 6, 10


@dataclass(frozen=True)
class Comparison:
    """One measurement, and whether a core is busy meanwhile."""

    number: int
    loaded: bool


@dataclass(frozen=True)
class Row:
    """One variant of a comparison against the baseline; `truth` is the true ratio."""

    comparison: int
    variant: str
    truth: float
    loaded: bool
    ratio: float
    low: float
    high: float
    adopted: bool
    processes: int
    rounds: int
    ended_by: str
    other_load_cores: float
    seconds: float
    sequential_ratio: float


def compare(comparison: Comparison, profile: ProfileParams, folder: Path) -> list[Row]:
    """Measures the baseline, the control and the candidates."""
    slower_by = {BASELINE: 0.0, **SLOWER_BY, files.CONTROL: 0.0}
    configs = {name: _config(share) for name, share in slower_by.items()}
    profile = profile.model_copy(update={"seed": comparison.number})
    context = Context(Wanted(traces=False), trainings_s=TRAININGS_S, began_s=time.monotonic())
    with other_load(float(comparison.loaded)):
        started_s = time.monotonic()
        asked = amounts(profile, context.min_speedup)
        measurement = measure(configs, BASELINE, profile, context, Repeats(folder / "repeats", asked), serve)
        seconds = time.monotonic() - started_s
        sequential_ms = _sequential_ms(configs)
    rows = []
    for name, by_measure in measurement.protocol.endings.items():
        ending = by_measure[TRAIN]
        ratio = _speedup(measurement.records, name, ending.confidence)
        rows.append(
            Row(
                comparison=comparison.number,
                variant=name,
                truth=1 / (1 + slower_by[name]),
                loaded=comparison.loaded,
                ratio=ratio.ratio,
                low=ratio.low,
                high=ratio.high,
                adopted=ratio.p_below(CompareParams().min_speedup) < 0.05,  # if the accuracy is the same
                processes=ratio.processes,
                rounds=ratio.rounds,
                ended_by=ending.ended_by,
                other_load_cores=measurement.protocol.other_load_cores or 0.0,
                seconds=seconds,
                sequential_ratio=sequential_ms[BASELINE] / sequential_ms[name],
            )
        )
    return rows


def _config(slower_by: float) -> SlowedConfig:
    return SlowedConfig(SPEC, Variant(policy="float32"), seed=0, slower_by=slower_by)


def _speedup(records: Mapping[str, ArmRecord], name: str, confidence: float) -> Speedup:
    return speedup_of(TRAIN, tables(records[BASELINE]), tables(records[name]), confidence)


def _sequential_ms(configs: Mapping[str, SlowedConfig]) -> dict[str, float]:
    """Mean step time in `SEQUENTIAL_SECONDS` of timing one variant after the other, without interleaving."""
    found = {}
    try:
        for name, config in configs.items():
            with closing(WorkerProcess(name, config, serve)) as worker:
                worker.call("warm_up", SEQUENTIAL_WARM_UP)
                times_ms, ends_s = [], time.monotonic() + SEQUENTIAL_SECONDS
                while time.monotonic() < ends_s:
                    times_ms.append(worker.call("train_round", SEQUENTIAL_STEPS) / SEQUENTIAL_STEPS)
            found[name] = float(np.mean(times_ms))
    finally:
        stop_servers()
    return found


def measure_missing(plan: list[Comparison], table: Path, profile: ProfileParams, folder: Path) -> Iterator[Row]:
    """Measures the comparisons that the table lacks, adds their rows to it, and yields them."""
    done = set(pd.read_csv(table)["comparison"]) if table.exists() else set()
    for comparison in plan:
        if comparison.number not in done:
            shutil.rmtree(folder / "repeats", ignore_errors=True)
            found = compare(comparison, profile, folder)
            lines = pd.DataFrame([asdict(row) for row in found]).to_csv(index=False, header=not table.exists())
            with table.open("a", encoding="utf-8") as file:
                file.write(lines)  # at once, so that a comparison is in the table as a whole or not at all
            yield from found


def report(rows: pd.DataFrame) -> pd.DataFrame:
    """Summary of the comparisons, with three columns per variant: idle machine, a core busy, and both."""
    columns = {}
    for variant, of_variant in rows.groupby("variant", sort=False):
        for loaded, of_kind in of_variant.groupby("loaded"):
            columns[f"{variant}, {'a core busy' if loaded else 'idle'}"] = _figures(of_kind)
        columns[f"{variant}, all"] = _figures(of_variant)
    return pd.DataFrame(columns)


def _figures(rows: pd.DataFrame) -> dict[str, str]:
    count, truth = len(rows), rows["truth"]
    covered = ((rows["low"] <= truth) & (truth <= rows["high"])).sum()
    error, sequential_error = ((rows[name] / truth - 1).abs() for name in ("ratio", "sequential_ratio"))
    return {
        "interval contains the truth": f"{covered} of {count}",
        "interval below 1": f"{(rows['high'] < 1).sum()} of {count}",
        "adopted": f"{rows['adopted'].sum()} of {count}",
        "half-width, median": f"{((rows['high'] - rows['low']) / 2).median():.2%}",
        "seconds, median": f"{rows['seconds'].median():.0f}",
        "processes, median": f"{rows['processes'].median():.0f}",
        "rounds, median": f"{rows['rounds'].median():.0f}",
        "ended before the time": f"{(rows['ended_by'] != 'time').sum()} of {count}",
        "cores used by other programs, median": f"{rows['other_load_cores'].median():.2f}",
        "error, median": f"{error.median():.2%}",
        "error, largest": f"{error.max():.2%}",
        "sequential: error, median": f"{sequential_error.median():.2%}",
        "sequential: error, largest": f"{sequential_error.max():.2%}",
    }


def main() -> None:
    """Runs the comparisons and prints the summary of all rows in the table."""
    parser = argparse.ArgumentParser(prog="python -m tools.benchmarks.timing", description=__doc__)
    parser.add_argument("--comparisons", type=int, default=40)
    parser.add_argument("--loaded", action="store_true", help="keep a core busy in every second comparison")
    parser.add_argument("--seconds", type=float, help="profile.max_seconds; as needed if not given")
    parser.add_argument("--csv", type=Path, required=True, help="file for one row per variant and comparison")
    arguments = parser.parse_args()
    table: Path = arguments.csv.resolve()
    profile = ProfileParams(inference_batch_sizes=(), max_seconds=arguments.seconds)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    print(_machine(), flush=True)
    plan = [Comparison(number, arguments.loaded and number % 2 == 1) for number in range(arguments.comparisons)]
    with tempfile.TemporaryDirectory(prefix="halfstep-benchmark-") as folder:
        os.chdir(folder)
        prepare(DataParams(), files.PREPARED)
        for row in measure_missing(plan, table, profile, Path(folder)):
            interval = f"{row.ratio:.3f} ({row.low:.3f} to {row.high:.3f})"
            print(f"{row.comparison}, {row.variant}: {interval}, {row.seconds:.0f} s", flush=True)
        os.chdir(ROOT)
    print(report(pd.read_csv(table)).to_string())


def _machine() -> str:
    machine = fingerprint()
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    return f"{machine['device']}; {versions}"


if __name__ == "__main__":
    main()
