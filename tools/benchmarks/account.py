"""Accounts for the change of a step by kinds of operations, from short traces of all arms in turns.

    python -m tools.benchmarks.account --out FILE                       all networks, five accounts each
    python -m tools.benchmarks.account --out FILE --models cnn_32       one of them
    python -m tools.benchmarks.account --out FILE --accounts 2 --load 0.5

The arms are float32, its copy and mixed_bfloat16. In each repeat they are new processes, which run a few rounds and are
then traced as in the stage `profile`, in turns of random order. The accounts are those of `compare`. The copy
must come out equal: its intervals should hold 0.

Each account adds a line of JSON to `--out` at once, and a rerun continues after the lines that are there. Nothing is
asserted.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from stages import files
from stages.compare.explain.accounts import Accounts, Part, calm_steps_ms
from stages.fork_server import stop_servers
from stages.locking import machine_lock
from stages.params import DataParams, ModelParams, Params, TaskParams, TrainParams, Variant
from stages.prepare.images.pipeline import prepare
from stages.prepare.own_task import prepare_task
from stages.profile.extras import account_rows
from stages.profile.plan import TURN_MS
from stages.profile.records import ArmConfig, TracedStretch
from stages.profile.worker_process import WorkerProcess
from stages.results.profile import AccountRow, Round
from stages.tasks.spec import TaskSpec
from tools.benchmarks.load import other_load

ROOT = Path(__file__).parents[2]
BASELINE, COPY, CANDIDATE = "float32", files.CONTROL, "mixed_bfloat16"
POLICIES = {BASELINE: BASELINE, CANDIDATE: CANDIDATE, COPY: BASELINE}
TARGET_SHARE = 0.02  # of a step: largest half-width on a quiet machine
IMAGES = 400
ROUNDS = 24  # without the profiler, in a repeat


@dataclass(frozen=True)
class Network:
    """What is trained: a model at an image size, or a function that returns a task."""

    model: str = "cnn"
    image_size: int = 32
    task: str | None = None
    batch_size: int = 32


NETWORKS = {
    "cnn_32": Network(),
    "resnet20_64": Network("resnet20", 64),
    "mobilenet_96": Network("keras.applications.MobileNetV3Small", 96),
    "resnet50_128": Network("resnet50", 128, batch_size=16),
    "text": Network(task="examples.text:build", batch_size=64),
}
_WHOLE = ("sum", "calm", "unexplained")
SHOWN = ("resnet20_64", "mobilenet_96", "text")


def prepared(network: Network) -> TaskSpec:
    """What the workers train, prepared in the working folder."""
    train = TrainParams(batch_size=network.batch_size, variants=(BASELINE,))
    task = TaskParams(name=network.task) if network.task else TaskParams()
    if network.task is None:
        images = DataParams(source="synthetic", image_size=network.image_size, synthetic_images=IMAGES)
        prepare(images, files.PREPARED)
    else:
        prepare_task(Params(task=task, train=train, variants={BASELINE: Variant(policy=BASELINE)}), files.PREPARED)
    digest = files.verify_manifest(files.PREPARED)
    return TaskSpec(task, ModelParams(name=network.model), train, prepared_sha256=digest)


def measured(
    spec: TaskSpec, policies: Mapping[str, str], number: int, *, repeats: int, turns: int, steps: int
) -> tuple[Accounts, float]:
    """An account of the second arm, and the seconds that a short trace took. A third arm is the baseline's copy."""
    rows: dict[str, list[AccountRow]] = {arm: [] for arm in policies}
    rounds: dict[str, list[Round]] = {arm: [] for arm in policies}
    generator, seconds = random.Random(number), []
    with machine_lock(), ExitStack() as outer:
        outer.callback(stop_servers)
        for repeat in range(repeats):
            with ExitStack() as stack:
                workers = {
                    arm: stack.enter_context(closing(WorkerProcess(arm, ArmConfig(spec, Variant(policy=policy), 0))))
                    for arm, policy in policies.items()
                }
                for worker in workers.values():
                    worker.call("warm_up", 4)
                    worker.call("account", 1, 1)  # what is computed once
                    worker.stand_still()
                round_steps = max(1, math.ceil(TURN_MS / _in_turn(workers[BASELINE], "train_round", 1)))
                for place in range(ROUNDS):
                    for arm in generator.sample(list(workers), len(workers)):
                        time_ms = _in_turn(workers[arm], "train_round", round_steps)
                        rounds[arm].append(Round(repeat, place, 0, round_steps, time_ms))
                found: dict[str, list[TracedStretch]] = {arm: [] for arm in policies}
                for _ in range(turns):
                    for arm in generator.sample(list(workers), len(workers)):
                        began_s = time.monotonic()
                        found[arm] += _in_turn(workers[arm], "account", steps, round_steps)
                        seconds.append(time.monotonic() - began_s)
                for arm, worker in workers.items():
                    rows[arm] += account_rows(repeat, found[arm])
                    worker.go_on()
    tables = [_table(found) for found in rows.values()]
    calm_ms = tuple(calm_steps_ms(_table(found)) for found in rounds.values())
    accounts = Accounts(tables[0], tables[1], calm_ms, tables[2] if len(tables) > 2 else None)
    return accounts, sum(seconds) / len(seconds)


def _table(rows: Sequence[AccountRow | Round]) -> pd.DataFrame:
    return pd.DataFrame(list(map(asdict, rows)))


def _in_turn(worker: WorkerProcess, method: str, *arguments: Any) -> Any:
    """Calls a method of a worker, which stands still before and after."""
    worker.go_on()
    found = worker.call(method, *arguments)
    worker.stand_still()
    return found


def row_of(model: str, number: int, of_candidate: Accounts, seconds: float, load: float) -> dict[str, Any]:
    """What is written of an account: the change in ms a step and its half-width, by arm and kind.

    So are the traced step, the calm one without the profiler, and what the traces miss, as `sum`, `calm` and
    `unexplained`; by arm, what the profiler adds to a calm step, as a share of it.
    """
    found: dict[str, Any] = {"model": model, "account": number, "load": load, "seconds_per_trace": seconds}
    for arm, accounts in ((COPY, of_candidate.of_copy), (CANDIDATE, of_candidate)):
        assert accounts is not None, "a copy has as many repeats"
        times, changes = accounts.changes(["kind"])
        kinds = zip(times.index, changes.deltas.tolist(), changes.half_widths().tolist(), strict=True)
        found[arm] = {str(kind): (delta, half) for kind, delta, half in kinds}
        found[arm] |= {"sum": _of(accounts.traced), "calm": _of(accounts.calm), "unexplained": _of(accounts.untraced)}
        overheads = -accounts.untraced[0].to_numpy()[0] / accounts.calm[0].to_numpy()[0]
        found["step_ms"] = float(accounts.calm[0]["baseline_ms"].iloc[0])
        found["profiler"] = {**found.get("profiler", {}), BASELINE: overheads[0], arm: overheads[1]}
    return found


def _of(part: Part) -> tuple[float, float]:
    return float(part[1].deltas[0]), float(part[1].half_widths()[0])


def report(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """One line an account: whether the copy came out equal, the widest interval, and the candidate's kinds."""
    lines = []
    for row in rows:
        copy = {kind: values for kind, values in row[COPY].items() if kind not in _WHOLE}
        total, half = row[COPY]["sum"]
        found = sorted(row[CANDIDATE].items(), key=lambda item: (item[0] in _WHOLE, -abs(item[1][0])))
        shown = ", ".join(f"{kind} {delta:+.2f} ± {width:.2f}" for kind, (delta, width) in found[:5])
        widest = max(copy, key=lambda kind: copy[kind][1])
        lines.append(
            {
                "network": row["model"],
                "load": row["load"],
                "step, ms": f"{row['step_ms']:.1f}",
                "copy, ms": f"{total:+.2f} ± {half:.2f}",
                "holds 0": "yes" if abs(total) <= half else "no",
                "kinds that hold 0": f"{sum(abs(delta) <= width for delta, width in copy.values())} of {len(copy)}",
                "sum's half-width": f"{half / row['step_ms']:.1%}",
                "widest kind": f"{widest} {copy[widest][1] / row['step_ms']:.1%}",
                "s a trace": f"{row['seconds_per_trace']:.2f}",
                "profiler": ", ".join(f"{arm} {share:+.1%}" for arm, share in row["profiler"].items()),
                "calm, ms": "{:+.2f} ± {:.2f}".format(*row[CANDIDATE]["calm"]),
                "unexplained, ms": "{:+.2f} ± {:.2f}".format(*row[CANDIDATE]["unexplained"]),
                CANDIDATE: shown,
            }
        )
    return pd.DataFrame(lines)


def totals(rows: Iterable[Mapping[str, Any]]) -> str:
    """How many copies' sums and kinds hold 0."""
    copies = [row[COPY] for row in rows]
    sums = [abs(copy["sum"][0]) <= copy["sum"][1] for copy in copies]
    kinds = [abs(delta) <= half for copy in copies for kind, (delta, half) in copy.items() if kind not in _WHOLE]
    return (
        f"copies that hold 0: {sum(sums)} of {len(sums)} in their sum, {sum(kinds)} of {len(kinds)} kinds "
        f"({sum(kinds) / max(1, len(kinds)):.1%})"
    )


def main() -> None:
    """Measures what is missing and prints the table."""
    parser = argparse.ArgumentParser(prog="python -m tools.benchmarks.account", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="file for one line of JSON per account")
    parser.add_argument("--models", nargs="+", choices=NETWORKS, default=list(SHOWN))
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
    for number in range(arguments.accounts):
        for model in arguments.models:
            if (model, number, arguments.load) in known:
                continue
            with tempfile.TemporaryDirectory(prefix="halfstep-benchmark-") as folder, other_load(arguments.load):
                os.chdir(folder)
                accounts, seconds = measured(prepared(NETWORKS[model]), POLICIES, number, **amounts)
                os.chdir(ROOT)
            rows.append(row_of(model, number, accounts, seconds, arguments.load))
            with out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(rows[-1]) + "\n")
            print(report(rows[-1:]).to_string(index=False), flush=True)
    print(report(rows).to_string(index=False))
    print(totals(rows))


if __name__ == "__main__":
    main()
