"""Measures how much processes of one interpreter differ, and how much interpreters differ on top of it.

    python -m tools.benchmarks.nested --out FILE                    cnn and ResNet-20: about five minutes
    python -m tools.benchmarks.nested --out FILE --models cnn_32    one of them

All processes run the same code, float32: several interpreters, and several processes forked from each, as in `profile`.
All live at once and take turns. The variance of the logarithm of a step time is divided into that of rounds, of
processes within an interpreter, and of interpreters, by a nested analysis of variance (Searle, Casella and McCulloch,
Variance components, 1992, section 3.6); p is that of its F tests. Each model adds a line of JSON to `--out` at once,
and a rerun continues after the lines that are there. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from stages import files
from stages.fork_server import stop_servers
from stages.locking import machine_lock
from stages.params import DataParams, ModelParams, TaskParams, TrainParams, Variant
from stages.prepare.images.pipeline import prepare
from stages.profile.records import ArmConfig
from stages.profile.worker_process import WorkerProcess
from stages.tasks.spec import TaskSpec

ROOT = Path(__file__).parents[2]
FORKS, ROUNDS, STEPS = 2, 40, {"cnn_32": 9, "resnet20_64": 1}
INTERPRETERS = {"cnn_32": 5, "resnet20_64": 4}


class Numbered(Variant):
    """An entry of `variants` with an interpreter of its own for each number."""

    number: int = 0

    @property
    def variables(self) -> dict[str, str]:
        """What the interpreter's environment has."""
        return {**super().variables, "HALFSTEP_INTERPRETER": str(self.number)}


@dataclass(frozen=True)
class Components:
    """Standard deviations of the logarithm of a time, and the p-values of the F tests that they are not 0."""

    rounds_sd: float
    processes_sd: float
    processes_p: float
    interpreters_sd: float
    interpreters_p: float


def components(logs: NDArray[np.float64]) -> Components:
    """Divides the variance of `logs`, `(interpreters, processes, rounds)`, whose rounds' means are taken out."""
    logs = logs - logs.mean(axis=(0, 1))
    interpreters, processes, rounds = logs.shape
    of_process, of_interpreter = logs.mean(axis=2), logs.mean(axis=(1, 2))
    degrees = (interpreters - 1, interpreters * (processes - 1), (interpreters * processes - 1) * (rounds - 1))
    mean_squares = (
        processes * rounds * float(np.sum((of_interpreter - logs.mean()) ** 2)) / degrees[0],
        rounds * float(np.sum((of_process - of_interpreter[:, None]) ** 2)) / degrees[1],
        float(np.sum((logs - of_process[:, :, None]) ** 2)) / degrees[2],
    )
    return Components(
        rounds_sd=np.sqrt(mean_squares[2]),
        processes_sd=np.sqrt(max(0.0, (mean_squares[1] - mean_squares[2]) / rounds)),
        processes_p=float(stats.f.sf(mean_squares[1] / mean_squares[2], degrees[1], degrees[2])),
        interpreters_sd=np.sqrt(max(0.0, (mean_squares[0] - mean_squares[1]) / (processes * rounds))),
        interpreters_p=float(stats.f.sf(mean_squares[0] / mean_squares[1], degrees[0], degrees[1])),
    )


def measured(model: str) -> NDArray[np.float64]:
    """Milliseconds of a step, `(interpreters, processes, rounds)`."""
    name, size = model.rsplit("_", 1)
    data = DataParams() if name == "cnn" else DataParams(source="synthetic", image_size=int(size), synthetic_images=400)
    prepare(data, files.PREPARED)
    digest = files.verify_manifest(files.PREPARED)
    spec = TaskSpec(TaskParams(), ModelParams(name=name), TrainParams(), prepared_sha256=digest)
    shape, generator = (INTERPRETERS[model], FORKS), random.Random(0)
    times_ms, order = np.zeros((*shape, ROUNDS)), list(np.ndindex(shape))
    with machine_lock(), ExitStack() as stack:
        stack.callback(stop_servers)
        workers = {}
        for place in order:
            config = ArmConfig(spec, Numbered(policy="float32", number=place[0]), 0)
            workers[place] = stack.enter_context(closing(WorkerProcess(f"process {place}", config)))
        for worker in workers.values():
            worker.call("warm_up", 3)
            worker.stand_still()
        for number in range(ROUNDS):
            order = order[::-1] if number % 2 else generator.sample(order, len(order))
            for place in order:
                worker = workers[place]
                worker.go_on()
                times_ms[(*place, number)] = worker.call("train_round", STEPS[model], 1) / STEPS[model]
                worker.stand_still()
        for worker in workers.values():
            worker.go_on()
    return times_ms


def main() -> None:
    """Measures what is missing and prints the table."""
    parser = argparse.ArgumentParser(prog="python -m tools.benchmarks.nested", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="file for one line of JSON per model")
    parser.add_argument("--models", nargs="+", choices=STEPS, default=list(STEPS))
    arguments = parser.parse_args()
    out: Path = arguments.out.resolve()
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()] if out.exists() else []
    for model in arguments.models:
        if model in {row["model"] for row in rows}:
            continue
        with tempfile.TemporaryDirectory(prefix="halfstep-benchmark-") as folder:
            os.chdir(folder)
            times_ms = measured(model)
            os.chdir(ROOT)
        found = {name: float(value) for name, value in vars(components(np.log(times_ms))).items()}
        row = {"model": model, "interpreters x processes": f"{INTERPRETERS[model]} x {FORKS}", "rounds": ROUNDS}
        rows.append(row | {"step_ms": float(times_ms.mean())} | found)
        with out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(rows[-1]) + "\n")
    print(pd.DataFrame(rows).to_string(index=False, float_format="%.3g"))


if __name__ == "__main__":
    main()
