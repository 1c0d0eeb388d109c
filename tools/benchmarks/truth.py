"""Are known differences found, and nothing else? Equal variants, steps that are 5 % longer, and planted layers."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import chdir
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pandas as pd

from halfstep.params.schema import (
    CompareParams,
    DataParams,
    ModelParams,
    ProfileParams,
    TaskParams,
    TrainParams,
    Variant,
)
from halfstep.prepare.images.pipeline import prepare
from halfstep.profile.repeats import Repeats, amounts
from halfstep.profile.runner import MeasurementContext, measure
from halfstep.profile.stopping_rule import tables
from halfstep.stats.speedup import speedup_of
from halfstep.system import files
from halfstep.tasks.trial import Trial
from halfstep.words.text import TRAIN
from tools.benchmarks import planting
from tools.benchmarks.checkout import ROOT
from tools.benchmarks.load import other_load

BASELINE = "float32"
SLOWER_BY: Mapping[str, float] = {BASELINE: 0.0, "equal": 0.0, "slower by 5 %": 0.05, files.CONTROL: 0.0}
TRAININGS_S = 60.0  # of which the plan makes a stage of 75 s


@dataclass(frozen=True)
class SlowedTrial(Trial):
    """An arm whose training steps are slower by `slower_by`: 0.05 is 5 %."""

    slower_by: float = 0.0


def serve(connection: Connection, trial: Trial) -> None:
    """What a worker process runs."""
    from halfstep.profile import worker

    class SlowedWorker(worker.Worker):
        """A worker that busy-waits at the end of each timed part."""

        def _train(self, steps: int, *, mark: bool = False, wait: bool = False) -> None:
            started_s = time.perf_counter()
            super()._train(steps, mark=mark, wait=wait)
            now_s = time.perf_counter()
            ends_s = now_s + getattr(trial, "slower_by", 0.0) * (now_s - started_s)
            while time.perf_counter() < ends_s:  # sleeping is not precise enough
                pass

    worker.serve(connection, SlowedWorker, trial)


def measurements(times: int, load_cores: float) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """So many comparisons of the training on the digits, and one account of each planted layer."""
    beside = f", {load_cores:g} cores busy" if load_cores else ""
    for number in range(times):
        yield f"digits {number}{beside}", partial(compared, number, load_cores)
    for what in planting.KINDS:
        yield f"planted {what}{beside}", partial(planted, what, load_cores)


def compared(number: int, load_cores: float) -> dict[str, Any]:
    """Measures the baseline, the control and the candidates as `profile` does."""
    configs = {
        name: SlowedTrial(TaskParams(), ModelParams(), TrainParams(), Variant(policy=BASELINE), 0, slower_by=share)
        for name, share in SLOWER_BY.items()
    }
    profile = ProfileParams(inference_batch_sizes=(), seed=number)
    context = MeasurementContext(traces=False, trainings_s=TRAININGS_S, began_s=time.monotonic())
    with tempfile.TemporaryDirectory(prefix="halfstep-benchmark-") as folder, chdir(folder), other_load(load_cores):
        prepare(DataParams(), files.PREPARED)
        started_s = time.monotonic()
        kept = Repeats(Path(folder) / "repeats", amounts(profile, context.min_speedup))
        measurement = measure(configs, BASELINE, profile, context, kept, serve)
        seconds = time.monotonic() - started_s
    ratios = {}
    for name, endings in measurement.protocol.endings.items():
        before, after = tables(measurement.records[BASELINE]), tables(measurement.records[name])
        ratio = speedup_of(TRAIN, before, after, endings[TRAIN].confidence)
        adopted = ratio.p_below(CompareParams().min_speedup) < 0.05  # if the accuracy is the same
        ratios[name] = {"ratio": ratio.ratio, "low": ratio.low, "high": ratio.high, "adopted": adopted}
    return {
        "ratios": ratios,
        "seconds": seconds,
        "rounds": measurement.protocol.rounds,
        "repeats": measurement.protocol.processes,
    }


def planted(what: str, load_cores: float) -> dict[str, Any]:
    """What the account says of a planted layer."""
    with tempfile.TemporaryDirectory(prefix="halfstep-benchmark-") as folder, chdir(folder), other_load(load_cores):
        before, os.environ["PYTHONPATH"] = os.environ.get("PYTHONPATH", ""), os.pathsep.join([folder, str(ROOT)])
        try:
            return planting.row_of(what, planting.planted(what))
        finally:
            os.environ["PYTHONPATH"] = before


def report(rows: Sequence[Mapping[str, Any]]) -> str:
    """The comparisons by variant, and a line for each planted layer."""
    comparisons = [row for row in rows if "ratios" in row]
    columns = {}
    for name in dict.fromkeys(name for row in comparisons for name in row["ratios"]):
        table = pd.DataFrame([row["ratios"][name] for row in comparisons])
        truth, seconds = 1 / (1 + SLOWER_BY[name]), pd.Series([row["seconds"] for row in comparisons])
        error, holds = (table["ratio"] / truth - 1).abs(), (table["low"] <= truth) & (truth <= table["high"])
        columns[name] = {
            "interval contains the truth": f"{holds.sum()} of {len(table)}",
            "interval below 1": f"{(table['high'] < 1).sum()} of {len(table)}",
            "adopted": f"{table['adopted'].sum()} of {len(table)}",
            "half-width, median": f"{((table['high'] - table['low']) / 2).median():.2%}",
            "seconds, median and largest": f"{seconds.median():.0f}, {seconds.max():.0f}",
            "error, median and largest": f"{error.median():.2%}, {error.max():.2%}",
        }
    layers = [{name: row[name] for name in row if name != "name"} for row in rows if "planted" in row]
    parts = [pd.DataFrame(columns).to_string()] if columns else []
    return "\n\n".join([*parts, planting.report(layers)] if layers else parts)
