"""Accounts for the change of a step by kinds of operations, from short traces of all arms in turns.

    python -m tools.benchmarks.account --out FILE                       all networks, five accounts each
    python -m tools.benchmarks.account --out FILE --models cnn_32       one of them
    python -m tools.benchmarks.account --out FILE --accounts 2 --load 0.5

The arms are float32, its copy and mixed_bfloat16. In each repeat they are new processes; in each turn every arm trains
a few steps without the profiler and as many with it, in random order. Each instant of a traced step is shared equally
by the operations that run then; `host` are the instants without an operation, and `profiler` is the step without the
profiler less the traced one. The sum is that of the traced step. A change is the mean of the differences by turn. Its
95 % interval is Student's t of what varies more, the repeats or their turns. The copy must come out equal: its
intervals should hold 0.

Each account adds a line of JSON to `--out` at once, and a rerun continues after the lines that are there. Nothing is
asserted.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from stages import files
from stages.fork_server import stop_servers
from stages.locking import machine_lock
from stages.operations.op_kinds import Layers
from stages.params import DataParams, ModelParams, TaskParams, TrainParams, Variant
from stages.prepare.images.pipeline import prepare
from stages.profile.records import ArmConfig
from stages.profile.trace.timeline import TracedSteps
from stages.profile.worker_process import WorkerProcess
from stages.tasks.spec import TaskSpec
from tools.benchmarks.load import other_load

ROOT = Path(__file__).parents[2]
BASELINE, COPY, CANDIDATE = "float32", files.CONTROL, "mixed_bfloat16"
POLICIES = {BASELINE: BASELINE, COPY: BASELINE, CANDIDATE: CANDIDATE}
HOST, PROFILER = "host", "profiler"
CONFIDENCE, TARGET_SHARE = 0.95, 0.02  # of a step: largest half-width on a quiet machine
NETWORKS = {
    "cnn_32": ("cnn", 32),
    "resnet20_64": ("resnet20", 64),
    "mobilenet_96": ("keras.applications.MobileNetV3Small", 96),
}
IMAGES = 400

Turns = dict[str, list[list[dict[str, float]]]]  # by arm, repeat and turn: milliseconds by kind


def kinds_of(traced: TracedSteps, plain_ms: float, layers: Layers) -> dict[str, float]:
    """Milliseconds of a step by kind. They add up to the step without the profiler, whose cost is negative."""
    found: dict[str, float] = defaultdict(float)
    for work, share_ms in traced.shares_ms.items():
        found[layers.kind(work.name, work.type, is_input=work.is_input)] += share_ms
    return found | {HOST: traced.host_ms, PROFILER: plain_ms - traced.step_ms}


def change(differences: NDArray[np.float64]) -> tuple[float, float]:
    """The mean of differences, `(repeats, turns)`, and the half-width of its interval.

    The interval is Student's t of the repeats' means or of all turns within their repeats, whichever is wider.
    """
    repeats, turns = differences.shape
    means = differences.mean(axis=1)
    within = (differences - means[:, None]).var() * repeats / (repeats * (turns - 1)) if turns > 1 else 0.0
    errors = {repeats - 1: means.std(ddof=1) / np.sqrt(repeats), repeats * (turns - 1): np.sqrt(within / repeats)}
    quantile = (1 + CONFIDENCE) / 2
    return float(means.mean()), max(
        float(stats.t.ppf(quantile, degrees) * error) for degrees, error in errors.items() if degrees
    )


def account(turns: Turns, arm: str) -> dict[str, tuple[float, float]]:
    """By kind, and for their `sum`, the change from the baseline in milliseconds a step, and its half-width."""
    pairs = [list(zip(*both, strict=True)) for both in zip(turns[BASELINE], turns[arm], strict=True)]
    kinds = sorted({kind for repeats in turns.values() for found in repeats for turn in found for kind in turn})

    def differences(chosen: Iterable[str]) -> NDArray[np.float64]:
        names = list(chosen)
        return np.array(
            [[sum(b.get(name, 0.0) - a.get(name, 0.0) for name in names) for a, b in found] for found in pairs]
        )

    traced = [kind for kind in kinds if kind != PROFILER]
    return {kind: change(differences([kind])) for kind in kinds} | {"sum": change(differences(traced))}


def measured(model: str, number: int, *, repeats: int, turns: int, steps: int) -> tuple[Turns, float]:
    """One account's turns, and the milliseconds of CPU of this process and the workers that a trace took to be read."""
    name, size = NETWORKS[model]
    prepare(DataParams(source="synthetic", image_size=size, synthetic_images=IMAGES), files.PREPARED)
    digest = files.verify_manifest(files.PREPARED)
    spec = TaskSpec(TaskParams(), ModelParams(name=name), TrainParams(), prepared_sha256=digest)
    found: Turns = {arm: [] for arm in POLICIES}
    generator, began_s, traces = random.Random(number), time.monotonic(), 0
    with machine_lock(), ExitStack() as outer:
        outer.callback(stop_servers)
        for _ in range(repeats):
            with ExitStack() as stack:
                workers = {
                    arm: stack.enter_context(closing(WorkerProcess(arm, ArmConfig(spec, Variant(policy=policy), 0))))
                    for arm, policy in POLICIES.items()
                }
                for worker in workers.values():
                    worker.call("warm_up", 4)
                    worker.stand_still()
                layers = {}
                for arm, worker in workers.items():
                    worker.go_on()
                    layers[arm] = worker.call("layers")
                    worker.stand_still()
                    found[arm].append([])
                began_s = time.monotonic() if not traces else began_s
                for _ in range(turns):
                    for arm in generator.sample(list(workers), len(workers)):
                        workers[arm].go_on()
                        traced, plain_ms = workers[arm].call("traced_steps", steps)
                        found[arm][-1].append(kinds_of(traced, plain_ms, layers[arm]))
                        workers[arm].stand_still()
                        traces += 1
                for worker in workers.values():
                    worker.go_on()
    return found, (time.monotonic() - began_s) / traces


def row_of(model: str, number: int, turns: Turns, seconds: float, load: float) -> dict[str, Any]:
    """What is written of an account."""
    baseline = [sum(turn.values()) for repeat in turns[BASELINE] for turn in repeat]
    return {
        "model": model,
        "account": number,
        "load": load,
        "step_ms": float(np.mean(baseline)),
        "seconds_per_trace": seconds,
        **{arm: account(turns, arm) for arm in (COPY, CANDIDATE)},
    }


def report(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """One line an account: whether the copy came out equal, the widest interval, and the candidate's kinds."""
    lines = []
    for row in rows:
        copy = {kind: values for kind, values in row[COPY].items() if kind != "sum"}
        total, half = row[COPY]["sum"]
        found = sorted(row[CANDIDATE].items(), key=lambda item: -abs(item[1][0]))
        shown = ", ".join(f"{kind} {delta:+.2f} ± {width:.2f}" for kind, (delta, width) in found[:5])
        lines.append(
            {
                "network": row["model"],
                "load": row["load"],
                "step, ms": f"{row['step_ms']:.1f}",
                "copy, ms": f"{total:+.2f} ± {half:.2f}",
                "holds 0": "yes" if abs(total) <= half else "no",
                "kinds that hold 0": f"{sum(abs(delta) <= width for delta, width in copy.values())} of {len(copy)}",
                "sum's half-width": f"{half / row['step_ms']:.1%}",
                "widest kind's": f"{max(width for _, width in copy.values()) / row['step_ms']:.1%}",
                "s a trace": f"{row['seconds_per_trace']:.2f}",
                CANDIDATE: shown,
            }
        )
    return pd.DataFrame(lines)


def main() -> None:
    """Measures what is missing and prints the table."""
    parser = argparse.ArgumentParser(prog="python -m tools.benchmarks.account", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="file for one line of JSON per account")
    parser.add_argument("--models", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--accounts", type=int, default=5, help="of each network")
    parser.add_argument("--repeats", type=int, default=4, help="of new processes in an account")
    parser.add_argument("--turns", type=int, default=4, help="in a repeat")
    parser.add_argument("--steps", type=int, default=3, help="of a trace")
    parser.add_argument("--load", type=float, default=0.0, help="part of a core that another program keeps busy")
    arguments = parser.parse_args()
    out: Path = arguments.out.resolve()
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()] if out.exists() else []
    known = {(row["model"], row["account"], row["load"]) for row in rows}
    amounts = {"repeats": arguments.repeats, "turns": arguments.turns, "steps": arguments.steps}
    for model in arguments.models:
        for number in range(arguments.accounts):
            if (model, number, arguments.load) in known:
                continue
            with tempfile.TemporaryDirectory(prefix="halfstep-benchmark-") as folder, other_load(arguments.load):
                os.chdir(folder)
                turns, seconds = measured(model, number, **amounts)
                os.chdir(ROOT)
            rows.append(row_of(model, number, turns, seconds, arguments.load))
            with out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(rows[-1]) + "\n")
    print(report(rows).to_string(index=False))


if __name__ == "__main__":
    main()
