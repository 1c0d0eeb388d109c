"""Measures the accuracy of the timing, for equal variants and for variants that are slower by a known share.

    python -m tests.benchmarks.timing                         all comparisons: about an hour
    python -m tests.benchmarks.timing --equal 4 --slowed 2    a short run

Each comparison measures training on the digits as `profile` does. In every second comparison, another program keeps a
core busy. The benchmark asserts nothing: it prints a summary, and writes one row per comparison to `--csv`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from stages import files
from stages.compare.verdict import decide
from stages.fingerprint import fingerprint
from stages.params import CompareParams, DataParams, ModelParams, ProfileParams, TrainParams, Variant
from stages.prepare.pipeline import prepare
from stages.profile.records import ArmConfig, ArmRecord
from stages.profile.runner import Extras, measure
from stages.profile.worker_process import WorkerProcess
from stages.stats.quality import QualityChange
from stages.stats.speedup import Speedup, train_speedup
from tests.benchmarks.slowed import SlowedConfig, serve

ROOT = Path(__file__).parents[2]
SLOWED = {"slower by 5 %": 0.05, "slower by 10 %": 0.10}
SEQUENTIAL_SECONDS = 2.0
# It counts as another program because it is not a child of this process. It ends when the folder in its first argument
# or the process in its second argument no longer exists.
BUSY = "import os, sys\nwhile os.path.exists(sys.argv[1]): os.kill(int(sys.argv[2]), 0)"


@dataclass(frozen=True)
class Row:
    """One comparison of a variant with the baseline; `truth` is the true ratio."""

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
    sequential_ratio: float


def compare(number: int, variants: Mapping[str, float], loaded: bool, profile: ProfileParams) -> list[Row]:
    """Measures the baseline and `variants`, each of which is slower by its share."""
    configs = {name: _config(share) for name, share in {"float32": 0.0, **variants}.items()}
    profile = profile.model_copy(update={"seed": number})
    with tempfile.TemporaryDirectory() as scratch, _busy_core() if loaded else nullcontext():
        started_s = time.monotonic()
        measurement = measure(configs, "float32", profile, Extras(frozenset(), Path(scratch), {}), serve)
        seconds = time.monotonic() - started_s
        sequential_ms = {name: _sequential_ms(name, config, profile) for name, config in configs.items()}
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
            sequential_ratio=sequential_ms["float32"] / sequential_ms[name],
        )
        for name, ratio in ratios.items()
    ]


def _config(slower_by: float) -> SlowedConfig:
    return SlowedConfig(ModelParams(), TrainParams(), Variant(policy="float32"), seed=0, slower_by=slower_by)


def _speedup(records: Mapping[str, ArmRecord], name: str, confidence: float) -> Speedup:
    before, after = (pd.DataFrame([asdict(row) for row in records[arm].times.rounds]) for arm in ("float32", name))
    return train_speedup(before, after, confidence)


def _verdict(ratio: Speedup) -> str:
    """The verdict for equal quality and a noise floor of 0, which makes `adopt` more likely."""
    correct = np.ones((1, 539), dtype=bool)
    return decide(ratio, 0.0, QualityChange(correct, correct), CompareParams())


def _process_sd(ratio: Speedup) -> float:
    """Standard deviation of the log ratio between processes, after subtracting the noise of their rounds."""
    within = np.mean([np.var(of_process, ddof=1) / len(of_process) for of_process in ratio.log_ratios])
    return float(np.sqrt(max(np.var(ratio.by_process, ddof=1) - within, 0.0)))


def _sequential_ms(name: str, config: ArmConfig, profile: ProfileParams) -> float:
    """Mean step time in `SEQUENTIAL_SECONDS` of timing one variant after the other, without interleaving."""
    with closing(WorkerProcess(name, config, serve)) as worker:
        worker.call("warm_up", profile.warmup_steps)
        times_ms = []
        ends_s = time.monotonic() + SEQUENTIAL_SECONDS
        while time.monotonic() < ends_s:
            times_ms.append(worker.call("train_round", profile.steps_per_round) / profile.steps_per_round)
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
        "adopt": f"{(rows['verdict'] == 'adopt').sum()} of {count}",
        "half-width, median": f"{((rows['high'] - rows['low']) / 2).median():.2%}",
        "seconds, median": f"{rows['seconds'].median():.0f}",
        "processes, median": f"{rows['processes'].median():.0f}",
        "rounds, median": f"{rows['rounds'].median():.0f}",
        "ended by target_precision": f"{(rows['ended_by'] == 'target_precision').sum()} of {count}",
        "sd between processes, median": f"{rows['process_sd'].median():.2%}",
        "cores used by other programs, median": f"{rows['other_load_cores'].median():.2f}",
        "error, median": f"{error.median():.2%}",
        "error, largest": f"{error.max():.2%}",
        "sequential: error, median": f"{sequential_error.median():.2%}",
        "sequential: error, largest": f"{sequential_error.max():.2%}",
    }


def main() -> None:
    """Runs the comparisons and prints the summary."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.timing", description=__doc__)
    parser.add_argument("--equal", type=int, default=30, help="comparisons of equal variants")
    parser.add_argument("--slowed", type=int, default=20, help="comparisons of variants slower by 5 and by 10 %%")
    parser.add_argument("--seconds", type=float, default=30, help="profile.max_seconds")
    parser.add_argument("--csv", type=Path, help="file for one row per comparison")
    arguments = parser.parse_args()
    table = arguments.csv.resolve() if arguments.csv else None
    profile = ProfileParams(inference_batch_sizes=(), max_seconds=arguments.seconds)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    print(_machine(), flush=True)
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


def _machine() -> str:
    machine = fingerprint()
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    return f"{machine['device']}; {versions}"


if __name__ == "__main__":
    main()
