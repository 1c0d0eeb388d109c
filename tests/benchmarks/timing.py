"""How far the timing can be trusted: variants that are equal, and variants that are slower by a known share.

    python -m tests.benchmarks.timing                     all of it: about an hour
    python -m tests.benchmarks.timing --equal 4 --slowed 2    a taste

Each comparison is a measurement as `profile` takes it, of training alone, on the digits. During every other one a
second program keeps a core busy. Nothing is asserted; a table is printed, and each comparison is a row of `--csv`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from stages import files
from stages.compare.statistics import AccuracyChange
from stages.compare.verdict import decide
from stages.environment.fingerprint import fingerprint
from stages.params import CompareParams, DataParams, ModelParams, ProfileParams, TrainParams, Variant
from stages.prepare.pipeline import prepare
from stages.profile.arm import Arm
from stages.profile.conductor import Extras, measure
from stages.profile.records import ArmRecord, Task
from stages.speedup import Speedup, train_speedup
from tests.benchmarks.slowed import SlowedTask, serve

ROOT = Path(__file__).parents[2]
SLOWED = {"slower by 5 %": 0.05, "slower by 10 %": 0.10}
SEQUENTIAL_SECONDS = 2.0
# Nobody's child, so that it counts as another program's load. It ends with the folder that it is given, or with the
# process, whichever goes first.
BUSY = "import os, sys\nwhile os.path.exists(sys.argv[1]): os.kill(int(sys.argv[2]), 0)"


@dataclass(frozen=True)
class Row:
    """One comparison of one variant with the baseline, `truth` being the ratio that is right."""

    variant: str
    truth: float
    loaded: bool
    ratio: float
    low: float
    high: float
    verdict: str
    processes: int
    rounds: int
    process_sd: float
    ended_by: str
    other_load_cores: float
    seconds: float
    one_after_the_other: float


def compare(number: int, variants: Mapping[str, float], loaded: bool, profile: ProfileParams) -> list[Row]:
    """One measurement of the baseline and of `variants`, which are slower by their shares."""
    tasks = {name: _task(share) for name, share in {"float32": 0.0, **variants}.items()}
    profile = profile.model_copy(update={"seed": number})
    with tempfile.TemporaryDirectory() as scratch, _busy_core() if loaded else nullcontext():
        started_s = time.monotonic()
        measurement = measure(tasks, "float32", profile, Extras(frozenset(), Path(scratch), {}), serve)
        seconds = time.monotonic() - started_s
        alone_ms = {name: _alone_ms(name, task, profile) for name, task in tasks.items()}
    protocol, records = measurement.protocol, measurement.records
    ratios = {name: _speedup(records, name, protocol.confidence) for name in variants}
    return [
        Row(
            variant=name,
            truth=1 / (1 + variants[name]),
            loaded=loaded,
            ratio=ratio.ratio,
            low=ratio.low,
            high=ratio.high,
            verdict=_verdict(ratio),
            processes=ratio.processes,
            rounds=ratio.rounds,
            process_sd=_process_sd(ratio),
            ended_by=protocol.ended_by,
            other_load_cores=protocol.other_load_cores or 0.0,
            seconds=seconds,
            one_after_the_other=alone_ms["float32"] / alone_ms[name],
        )
        for name, ratio in ratios.items()
    ]


def _task(slower_by: float) -> SlowedTask:
    return SlowedTask(ModelParams(), TrainParams(), Variant(policy="float32"), seed=0, slower_by=slower_by)


def _speedup(records: Mapping[str, ArmRecord], name: str, confidence: float) -> Speedup:
    before, after = (pd.DataFrame([asdict(row) for row in records[arm].rounds]) for arm in ("float32", name))
    return train_speedup(before, after, confidence)


def _verdict(ratio: Speedup) -> str:
    """As `compare` judges it, the accuracy being the same; without a noise floor, which makes it bolder."""
    right = np.ones((1, 539), dtype=bool)
    return decide(ratio, 0.0, AccuracyChange(right, right), CompareParams())


def _process_sd(ratio: Speedup) -> float:
    """Standard deviation between processes, of the logarithm: what their rounds' own noise leaves over."""
    within = np.mean([np.var(of_process, ddof=1) / len(of_process) for of_process in ratio.log_ratios])
    return float(np.sqrt(max(np.var(ratio.by_process, ddof=1) - within, 0.0)))


def _alone_ms(name: str, task: Task, profile: ProfileParams) -> float:
    """A step of a variant that is timed by itself, for a few seconds, before the next one is."""
    arm = Arm(name, task, serve)
    try:
        arm.ask("warm_up", profile.warmup_steps)
        times_ms = []
        ends_s = time.monotonic() + SEQUENTIAL_SECONDS
        while time.monotonic() < ends_s:
            times_ms.append(arm.ask("train_round", profile.steps_per_round) / profile.steps_per_round)
    finally:
        arm.stop()
    return float(np.mean(times_ms))


@contextmanager
def _busy_core() -> Iterator[None]:
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            ["sh", "-c", '"$0" -c "$1" "$2" "$3" 2>/dev/null &', sys.executable, BUSY, folder, str(os.getpid())],
            check=True,
        )
        yield


def report(rows: pd.DataFrame) -> pd.DataFrame:
    """What the comparisons say: a column for each variant, without a second program, with one, and both together."""
    columns = {}
    for variant, of_variant in rows.groupby("variant", sort=False):
        for loaded, of_kind in of_variant.groupby("loaded"):
            columns[f"{variant}, {'a core busy' if loaded else 'quiet'}"] = _figures(of_kind)
        columns[f"{variant}, all"] = _figures(of_variant)
    return pd.DataFrame(columns)


def _figures(rows: pd.DataFrame) -> dict[str, str]:
    count, truth = len(rows), rows["truth"]
    holds = ((rows["low"] <= truth) & (truth <= rows["high"])).sum()
    error, alone = ((rows[name] / truth - 1).abs() for name in ("ratio", "one_after_the_other"))
    return {
        "interval holds the truth": f"{holds} of {count}",
        "interval wholly below 1": f"{(rows['high'] < 1).sum()} of {count}",
        "adopt": f"{(rows['verdict'] == 'adopt').sum()} of {count}",
        "half-width, median": f"{((rows['high'] - rows['low']) / 2).median():.2%}",
        "seconds, median": f"{rows['seconds'].median():.0f}",
        "processes, median": f"{rows['processes'].median():.0f}",
        "rounds, median": f"{rows['rounds'].median():.0f}",
        "ended by target_precision": f"{(rows['ended_by'] == 'target_precision').sum()} of {count}",
        "between processes, sd, median": f"{rows['process_sd'].median():.2%}",
        "cores of others, median": f"{rows['other_load_cores'].median():.2f}",
        "error, median": f"{error.median():.2%}",
        "error, largest": f"{error.max():.2%}",
        "one after the other: error, median": f"{alone.median():.2%}",
        "one after the other: error, largest": f"{alone.max():.2%}",
    }


def main() -> None:
    """Runs the comparisons and prints what they say."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.timing", description=__doc__)
    parser.add_argument("--equal", type=int, default=30, help="comparisons of equal variants")
    parser.add_argument("--slowed", type=int, default=20, help="comparisons of variants slower by 5 and by 10 %%")
    parser.add_argument("--seconds", type=float, default=30, help="profile.max_seconds")
    parser.add_argument("--csv", type=Path, help="where each comparison's row goes")
    arguments = parser.parse_args()
    table = arguments.csv.resolve() if arguments.csv else None
    profile = ProfileParams(inference_batch_sizes=(), max_seconds=arguments.seconds)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    print(_where(), flush=True)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="halfstep-benchmark-") as folder:
        os.chdir(folder)
        prepare(DataParams(), files.PREPARED)
        plan = [{"equal": 0.0}] * arguments.equal + [SLOWED] * arguments.slowed
        for number, variants in enumerate(plan):
            found = compare(number, variants, loaded=number % 2 == 1, profile=profile)
            rows += found
            for row in found:
                interval = f"{row.ratio:.3f} ({row.low:.3f} to {row.high:.3f})"
                print(f"{number:3d} {row.variant}: {interval}, {row.seconds:.0f} s", flush=True)
            if table:
                pd.DataFrame([asdict(item) for item in rows]).to_csv(table, index=False)
        os.chdir(ROOT)
    print(report(pd.DataFrame([asdict(row) for row in rows])).to_string())


def _where() -> str:
    machine = fingerprint()
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    return f"{machine['device']}; {versions}"


if __name__ == "__main__":
    main()
