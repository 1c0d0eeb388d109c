"""Runs each way as a user does, with a delay that is really there, and notes the answer and the wall time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stages.locking import machine_lock
from tools.benchmarks.checkout import cloned
from tools.benchmarks.load import other_load
from tools.benchmarks.other_ways import ways
from tools.benchmarks.other_ways.drawing import BAR, HALFSTEP, PYPERF, stopwatch_name
from tools.benchmarks.other_ways.halfstep import ANSWERS, BATCH_SIZE
from tools.benchmarks.other_ways.recording import EPOCHS, ROOT, fit_in_process
from tools.benchmarks.other_ways.recordings import FIRST_EPOCHS, LOADS
from tools.benchmarks.other_ways.ways import Answer, Found

FILE = "end_to_end.jsonl"
SLOWER_BY = "HALFSTEP_SLOWER_BY"  # tells `step_bench.py` the delay
DELAY = "delay"
RUNS = (
    DELAY,
    "fit",
    "long fit",
    PYPERF,
    HALFSTEP,
)  # one run of `fit` answers for the stopwatch and for the progress bar
TASK = """
from tools.benchmarks.other_ways import digits


def build(*, batch_size, seed):
    return digits.task(seed=seed, slower_by={slower_by})
"""


@dataclass(frozen=True)
class Line:
    """One answer of one way."""

    load: str
    truth: float
    run: str
    number: int
    way: str
    ratio: float
    answer: Answer
    seconds: float
    interval: tuple[float, float] | None = None


def run_missing(
    folder: Path,
    loads: Sequence[str],
    truths: Sequence[float],
    runs: Sequence[str],
    times: int,
    goes_on: Callable[[], bool],
) -> Iterator[Line]:
    """Runs what the file in the folder lacks, adds the answers to it, and yields them."""
    done = {(line.load, line.truth, line.run, line.number) for line in read(folder)}
    for number, run, load, truth in product(range(times), runs, loads, truths):
        if (load, truth, run, number) in done or not goes_on():
            continue
        with nullcontext() if run == HALFSTEP else machine_lock(), other_load(LOADS[load]):  # `profile` locks by itself
            found = answers(run, truth)
        lines = [Line(load, truth, run, number, way, **asdict(item)) for way, item in found.items()]
        with (folder / FILE).open("a", encoding="utf-8") as file:
            file.write("".join(json.dumps(asdict(line)) + "\n" for line in lines))
        yield from lines


def read(folder: Path) -> list[Line]:
    """The answers so far."""
    path = folder / FILE
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return [Line(**json.loads(line)) for line in text.splitlines()]


def answers(run: str, truth: float) -> dict[str, Found]:
    """The answers of one run, by way."""
    alone = {DELAY: of_delay, PYPERF: with_pyperf, HALFSTEP: with_halfstep}
    if run in alone:
        return {run: alone[run](truth)}
    return with_fit(truth, FIRST_EPOCHS if run == "fit" else EPOCHS)


def of_delay(truth: float) -> Found:
    """What the delay amounts to, which is no way: it says how true the truth is."""
    command = [sys.executable, "-m", "tools.benchmarks.other_ways.delay", "--slower-by", str(truth - 1)]
    started_s = time.monotonic()
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    ratio = float(done.stdout.splitlines()[-1])
    return Found(ratio, ways.answer_of(ratio), time.monotonic() - started_s)


def with_fit(truth: float, epochs: int) -> dict[str, Found]:
    """Trains twice, and reads the stopwatch, and after a short training the progress bar."""
    (before, before_s), (after, after_s) = (fit_in_process(epochs, slower_by) for slower_by in (truth - 1, 0.0))
    ratios = {stopwatch_name(epochs): ways.stopwatch(before, after, epochs)}
    if epochs == FIRST_EPOCHS:
        ratios[BAR] = ways.progress_bar(before, after, epochs)
    return {way: Found(ratio, ways.answer_of(ratio), before_s + after_s) for way, ratio in ratios.items()}


def with_pyperf(truth: float) -> Found:
    """Times a step of both sides with pyperf, and compares them."""
    started_s = time.monotonic()
    ratio, answer = ways.pyperf_answer(_values(truth - 1), _values(0.0))
    return Found(ratio, answer, time.monotonic() - started_s)


def _values(slower_by: float) -> NDArray[np.float64]:
    """The values of pyperf's benchmark of a step, in seconds."""
    with tempfile.TemporaryDirectory(prefix="halfstep-benchmark-") as folder:
        out, script = Path(folder) / "step.json", Path(__file__).with_name("step_bench.py")
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        variables = os.environ | {SLOWER_BY: str(slower_by), "PYTHONPATH": path}
        command = [sys.executable, str(script), "-o", str(out), "--inherit-environ", SLOWER_BY]
        subprocess.run(command, cwd=folder, env=variables, check=True, capture_output=True)
        (benchmark,) = json.loads(out.read_text(encoding="utf-8"))["benchmarks"]
    return np.concatenate([run.get("values", []) for run in benchmark["runs"]])


def with_halfstep(truth: float) -> Found:
    """Runs `dvc repro` in a new clone, with the delay in the baseline's task."""
    with cloned("HEAD") as checkout:
        for name, slower_by in (("before", truth - 1), ("after", 0.0)):
            (checkout.root / name).mkdir()
            (checkout.root / name / "planted.py").write_text(TASK.format(slower_by=slower_by), encoding="utf-8")
        checkout.configure(
            {
                "task.name": "planted:build",
                "task.path": "before",
                "variants.before": {"policy": "float32"},
                "variants.after": {"policy": "float32", "task_path": "after"},
                "train.variants": ["before", "after"],
                "train.epochs": FIRST_EPOCHS,
                "train.batch_size": BATCH_SIZE,
                "profile.inference_batch_sizes": [],
                "compare.baseline": "before",
                "compare.quality_margin": 0.01,
            }
        )
        seconds = checkout.run("dvc", "repro")
        candidate = checkout.comparison()["candidates"]["after"]
    speedup = candidate["speedup"]["train"]
    interval = speedup["low"], speedup["high"]
    return Found(speedup["ratio"], ANSWERS[candidate["verdict"]], seconds, interval)
