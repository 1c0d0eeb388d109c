"""A complete small `data/` with known numbers, written by the stages' own writers; and fixtures on copies of it."""

from __future__ import annotations

import contextlib
import functools
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from rich.console import RenderableType

from halfstep.compare.case import Case, Judging
from halfstep.compare.document import document_of, judged
from halfstep.compare.explain.account import account_of, with_names
from halfstep.compare.explain.accounts import Accounts
from halfstep.compare.explain.limit import compute_operations
from halfstep.compare.next_steps import next_steps
from halfstep.compare.report.html import render_report
from halfstep.compare.report.terminal import details
from halfstep.compare.stage import write_results
from halfstep.compare.study import Study, VariantResult, load_study
from halfstep.operations.op_kinds import Layers
from halfstep.params.schema import CompareParams, Variant
from halfstep.results import comparison as document
from halfstep.results.artifact import Document, write_table
from halfstep.results.prepared import PreparedInfo
from halfstep.results.profile import (
    HOST,
    SUMMARY,
    AccountRow,
    Configuration,
    Ending,
    InferenceCall,
    InForce,
    InputRound,
    Profile,
    ProfileSummary,
    Protocol,
    RawTimes,
    Round,
    Step,
    same_weights_file,
    write_profile,
)
from halfstep.results.task import TASK_INFO, TaskInfo, images_task
from halfstep.results.training import (
    HISTORY,
    METRICS,
    PREDICTIONS,
    SCORES,
    Training,
    TrainingMetrics,
    write_not_trained,
    write_training,
)
from halfstep.stats.resampling import metric_scores
from halfstep.stats.speedup import CONFIDENCE, REPEAT_SD, ProcessTimes, Speedup
from halfstep.system import files
from halfstep.words.text import TRAIN, inference_measure

_Compared = TypeVar("_Compared", Case, Judging)
VARIANTS = ("float32", "mixed_float16", "mixed_bfloat16", "float16")
FAILED = "float16"
MEASURED = tuple(name for name in VARIANTS if name != FAILED)
SEEDS = (1, 2, 3)
BATCH_SIZES = (1, 32)
CLASSES = ("ant", "bee", "cat", "dog")
IMAGES = 1200
EPOCHS = 5
LOSS_SCALE = 32768.0
STEP_MS = 10.0
BRIDGE = "_bridge_onednn_off"  # of mixed_float16, which runs without oneDNN
SPEEDUPS = {"float32": 1.0, "_control": 1.0, "mixed_float16": 0.25, "mixed_bfloat16": 1.6, BRIDGE: 0.8}
# Deviations of the processes, as shares of STEP_MS. Those of an arm add up to zero, so that the ratios above, which are
# ratios of total times, are exact.
PROCESS_OFFSETS = {
    "float32": (0.0, 0.0, 0.0, 0.0),
    "_control": (0.008, -0.008),  # it takes part in two of four repeats
    "mixed_float16": (-0.010, 0.010, -0.006, 0.006),
    "mixed_bfloat16": (-0.010, 0.010, -0.006, 0.006),
    BRIDGE: (0.004, 0.004, -0.010, 0.002),
}
ONEDNN = {name: name not in ("mixed_float16", BRIDGE) for name in SPEEDUPS}
WRONG_IMAGES = {"float32": 24, "mixed_float16": 24, "mixed_bfloat16": 27}
WRONG_WITH_SAME_WEIGHTS = {"mixed_float16": 24, "mixed_bfloat16": 25}
SAME_WEIGHTS_PROBABILITY = 0.687  # of the predicted class, 0.7 after a training

ENVIRONMENT = {
    "device": "Test CPU 9000, 2 cores",
    "cpu": {"model": "Test CPU 9000", "usable_cores": 2, "instruction_sets": ["avx2", "avx512_bf16"]},
    "gpus": [],
    "versions": {"python": "3.11.7", "tensorflow": "2.21.0"},
    "settings": {},
}

OPERATIONS: dict[str, list[tuple[str, float, str]]] = {
    "float32": [("Conv2D", 4.0, "float32"), ("MatMul", 1.0, "float32"), ("Relu", 0.5, "float32")],
    "mixed_float16": [("Conv2D", 24.0, "float16"), ("MatMul", 6.0, "float16"), ("Cast", 3.0, "float16")],
    "mixed_bfloat16": [("Conv2D", 2.0, "bfloat16"), ("MatMul", 0.5, "bfloat16"), ("Cast", 0.1, "bfloat16")],
    "_control": [("Conv2D", 4.05, "float32"), ("MatMul", 0.98, "float32"), ("Relu", 0.5, "float32")],
}
COMPUTE_16BIT_PERCENT = {"float32": 0.0, "_control": 0.0, "mixed_float16": 90.0, "mixed_bfloat16": 60.0}
BATCH_SIZE = 32  # of training
CONFIGURATION = Configuration(
    device="CPU",
    input_shape=(32, 32, 3),
    parameters=11_330,
    optimizer="adam",
    op_determinism=False,
    layer_widths=(8, 16, 32),
    data_sha256="d" * 64,
)


def settings_in_force(policy: str, **settings: Any) -> InForce:
    """The settings of an arm, with those of the default parameters."""
    defaults: dict[str, Any] = {
        "xla": False,
        "tf32": True,
        "onednn": True,
        "batch_size": BATCH_SIZE,
        "input_threads": 2,
    }
    return InForce(policy=policy, **(defaults | {"learning_rate": 0.005} | settings))


ENDING = Ending(ended_by="time", confidence=0.96, looks=2, repeats=4)
PROTOCOL = Protocol(
    processes=4,
    rounds=20,
    steps_per_round=6,
    timing_seconds=30.0,
    stage_seconds=60.0,
    control_seconds=8.0,
    endings={
        name: dict.fromkeys(("train", *map(inference_measure, BATCH_SIZES)), ENDING)
        for name in ("mixed_float16", "mixed_bfloat16")
    },
    target_precision=0.02,
)


def write_prepared(*, synthetic: bool = False) -> None:
    files.PREPARED.mkdir(parents=True, exist_ok=True)
    np.save(files.PREPARED / "test_labels.npy", labels())
    images = {"train": 900, "validation": 100, "test": IMAGES}
    PreparedInfo(
        source="synthetic" if synthetic else "digits",
        synthetic=synthetic,
        classes=CLASSES,
        image_shape=(32, 32, 3),
        images=images,
        class_counts={split: dict.fromkeys(CLASSES, count // len(CLASSES)) for split, count in images.items()},
        rejected=0,
    ).write(files.PREPARED / "info.json")
    images_task(IMAGES).write(TASK_INFO)
    files.write_manifest(files.PREPARED)


def labels() -> NDArray[np.int32]:
    return (np.arange(IMAGES) % len(CLASSES)).astype(np.int32)


def training_metrics(**changes: Any) -> TrainingMetrics:
    """The metrics of a training; `status` and others can be changed."""
    values: dict[str, Any] = {
        "status": "finished",
        "train_time_s": 12.0,
        "train_images_per_s": 600.0,
        "batch_size": 32,
        "data_sha256": "d" * 64,
        "environment": "Test CPU 9000; tensorflow 2.21.0",
    }
    return TrainingMetrics(**(values | changes))


def epoch_row(variant: str, seed: int, epoch: int) -> dict[str, float]:
    """One row of `history.csv`; epochs count from 0."""
    scaling = {"loss_scale": LOSS_SCALE, "skipped_steps": 1} if variant == "mixed_float16" else {}
    return dict(
        epoch=epoch,
        loss=1 / (epoch + 1),
        accuracy=1 - 0.3 / (epoch + 1),
        val_loss=1.1 / (epoch + 1),
        val_accuracy=1 - 0.4 / (epoch + 1 + 0.1 * seed + 0.2 * VARIANTS.index(variant)),
        learning_rate=0.001,
        epoch_time_s=2.0,
        **scaling,
    )


def save_model(path: Path) -> None:
    path.write_bytes(b"a model")


def write_small_training(variant: str, seed: int) -> None:
    folder = files.train_dir(variant, seed)
    if variant == FAILED:
        metrics = training_metrics(status="failed", reason="the loss is nan in epoch 2", epoch=2)
        write_training(folder, metrics, [], save_model, None)
        return
    metrics = training_metrics(
        test_accuracy=1 - WRONG_IMAGES[variant] / IMAGES,
        test_loss=0.1,
        loss_scale=LOSS_SCALE if variant == "mixed_float16" else None,
    )
    epochs = [epoch_row(variant, seed, epoch) for epoch in range(EPOCHS)]
    write_training(folder, metrics, epochs, save_model, predictions(WRONG_IMAGES[variant], seed))


def predictions(wrong: int, seed: int, probability: float = 0.7) -> NDArray[np.float32]:
    """Probabilities, `(images, classes)`: the first `wrong` images, counted from `seed`, get the next class."""
    predicted = labels().copy()
    predicted[seed : seed + wrong] = (predicted[seed : seed + wrong] + 1) % len(CLASSES)
    probabilities = np.full((IMAGES, len(CLASSES)), 0.1, dtype=np.float32)
    probabilities[np.arange(IMAGES), predicted] = probability
    return probabilities


def own_scores(variant: str, seed: int, kind: Literal["score", "metric"], loss: float) -> NDArray[np.float64]:
    """Scores of a task that is not `images`: of each example, or their mean as a metric."""
    generator = np.random.default_rng([seed, VARIANTS.index(variant)])
    common = np.random.default_rng(0).beta(5, 2, IMAGES)
    scores = common + (0.0 if variant == "float32" else 0.02 * generator.normal(size=IMAGES) - loss)
    return scores if kind == "score" else metric_scores(lambda _, values: float(values.mean()), scores, scores)


def time_ms(name: str, process: int, baseline_ms: float) -> float:
    """Time in one process. Later processes are slower for all arms alike, which pairing removes."""
    return baseline_ms * (1 + 0.2 * process + PROCESS_OFFSETS[name][process]) / SPEEDUPS[name]


def input_rounds(step_ms: float, cached_ms: float, noise: float = 0.0) -> list[InputRound]:
    """Turns of six steps on the input pipeline and on a cached batch, in two repeats."""
    random = np.random.default_rng(0)
    kinds: dict[Literal["pipeline", "cached"], float] = {"pipeline": step_ms, "cached": cached_ms}
    return [
        InputRound(process, number, batches, 6, 6 * mean_ms * (1 + noise * random.normal()))
        for process in range(2)
        for number in range(4)
        for batches, mean_ms in kinds.items()
    ]


def raw_times(name: str) -> RawTimes:
    """The first round of a process takes three times as long and does not count."""
    processes = range(len(PROCESS_OFFSETS[name]))
    places = [(process, number) for process in processes for number in range(6)]

    def slow(number: int) -> float:
        return 1.0 if number else 3.0

    return RawTimes(
        rounds=[Round(p, r, 0, 6, 6 * slow(r) * time_ms(name, p, STEP_MS), counted=r > 0) for p, r in places],
        input_rounds=[] if name.startswith("_") else input_rounds(*[time_ms(name, 0, STEP_MS)] * 2),
        steps=[
            Step(p, r, s, time_ms(name, p, STEP_MS) * (1 + 0.02 * s))
            for p in processes
            for r in range(2)
            for s in range(6)
        ],
        account=account_rows([operation(*one) for one in OPERATIONS[name]], time_ms(name, 0, STEP_MS), name)
        if name in OPERATIONS
        else [],
        calls=[
            InferenceCall(
                p, r, size, call, slow(r) * time_ms(name, p, 1.0 + 0.1 * size) * (1 + 0.01 * call), counted=r > 0
            )
            for p, r in places
            for size in BATCH_SIZES
            for call in range(3)
        ],
    )


def timing_metrics(name: str) -> dict[str, float]:
    """The metrics of an arm's raw times, of what counts."""
    times, size = raw_times(name), BATCH_SIZE
    mean_ms = float(np.mean([row.round_time_ms / row.steps for row in times.rounds if row.counted]))
    steps_ms = [row.step_time_ms for row in times.steps]
    metrics = {
        "step_time_ms/mean": mean_ms,
        "step_time_ms/p50": float(np.percentile(steps_ms, 50)),
        "step_time_ms/p95": float(np.percentile(steps_ms, 95)),
        "train_images_per_s": size * 1e3 / mean_ms,
        "startup_s": 6.5 / SPEEDUPS[name],
    }
    if times.input_rounds:
        input_ms = time_ms(name, 0, STEP_MS)
        metrics |= {"step_time_ms/with_input": input_ms, "step_time_ms/cached_batch": input_ms}
    for size in BATCH_SIZES:
        calls_ms = [call.latency_ms for call in times.calls if call.batch_size == size and call.counted]
        metrics |= {f"inference/b{size}/p{rank}_ms": float(np.percentile(calls_ms, rank)) for rank in (50, 95, 99)}
        metrics |= {
            f"inference/b{size}/mean_ms": float(np.mean(calls_ms)),
            f"inference/b{size}/cold_ms": 3 * float(np.median(calls_ms)),
            f"inference/b{size}/images_per_s": size * 1e3 / float(np.mean(calls_ms)),
        }
    return metrics


def trace_metrics(name: str) -> dict[str, float]:
    """The metrics of an arm's trace."""
    traced_ms = STEP_MS / SPEEDUPS[name]
    return {
        "profiler/step_time_ms": traced_ms,
        "profiler/host_compute_ms": 0.85 * traced_ms,
        "profiler/input_ms": 0.05 * traced_ms,
        "profiler/other_ms": 0.10 * traced_ms,
        "profiler/compute_16bit_percent": COMPUTE_16BIT_PERCENT[name],
        "profiler/overhead_percent": 4.0,
    }


def summary(name: str, **changes: Any) -> ProfileSummary:
    """The summary of an arm; its fields can be changed."""
    policy = "float32" if name.startswith("_") else name
    peak_mib = 210.0 if policy == "float32" else 180.0
    values: dict[str, Any] = {
        "variant": name,
        "entry": Variant(policy=policy, onednn=ONEDNN[name]),
        "configuration": CONFIGURATION,
        "in_force": settings_in_force(policy, onednn=ONEDNN[name]),
        "protocol": PROTOCOL,
        "metrics": timing_metrics(name)
        | {"memory/peak_mib": peak_mib}
        | (trace_metrics(name) if name in OPERATIONS else {}),
    }
    return ProfileSummary(**(values | changes))


def write_small_profile(name: str, trace: Path, **changes: Any) -> None:
    same_weights = {
        seed: predictions(WRONG_WITH_SAME_WEIGHTS[name], seed, SAME_WEIGHTS_PROBABILITY)
        for seed in (SEEDS if name in WRONG_WITH_SAME_WEIGHTS else ())
    }
    write_profile(name, summary(name, **changes), raw_times(name), trace if name in OPERATIONS else None, same_weights)


class SmallStudy:
    """The files, and how to change and read them. Its root is the working folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self) -> None:
        write_prepared()
        files.write_json(files.ENVIRONMENT_FILE, files.with_checksum(ENVIRONMENT))
        for variant in VARIANTS:
            for seed in SEEDS:
                write_small_training(variant, seed)
        trace = self.root / "trace"
        trace.write_bytes(b"a trace")
        for name in SPEEDUPS:
            write_small_profile(name, trace)

    def make_speed_only(self) -> None:
        """Makes of the trainings what they are with `train.epochs: 0`. Without them no variant fails."""
        shutil.rmtree(files.TRAIN)
        metrics = TrainingMetrics(
            status="not_trained", batch_size=32, data_sha256="d" * 64, environment="Test CPU 9000; tensorflow 2.21.0"
        )
        for variant in MEASURED:
            for seed in SEEDS:
                write_not_trained(files.train_dir(variant, seed), metrics)
        for name in WRONG_WITH_SAME_WEIGHTS:
            for seed in SEEDS:
                same_weights_file(name, seed).unlink()
            files.write_manifest(files.profile_dir(name))

    def leave_untrained(self, variant: str) -> None:
        """Makes of a variant's trainings what they are with `trained: false`."""
        first = TrainingMetrics.read(files.train_dir(variant, SEEDS[0]) / "metrics.json")
        kept = first.model_dump(include={"batch_size", "data_sha256", "environment"})
        for seed in SEEDS:
            metrics = TrainingMetrics(status="not_trained", reason="its entry says so", **kept)
            write_not_trained(files.train_dir(variant, seed), metrics)

    def compare_speed_only(self, **params: Any) -> Judging:
        return judged(self.load(variants=MEASURED), CompareParams(**params))

    def make_synthetic(self) -> None:
        write_prepared(synthetic=True)

    def rename_classes(self, names: Sequence[str]) -> None:
        """Gives the test images these classes in turn. The predictions still name the first four."""
        np.save(files.PREPARED / "test_labels.npy", (np.arange(IMAGES) % len(names)).astype(np.int32))
        _edit(PreparedInfo, files.PREPARED / "info.json", {"classes": tuple(names)})

    def edit_task(self, **changes: Any) -> None:
        """Changes fields of `task.json`."""
        TaskInfo.read(TASK_INFO).model_copy(update=changes).write(TASK_INFO)
        files.write_manifest(files.PREPARED)

    def make_own(self, kind: Literal["score", "metric"], score_name: str = "iou") -> None:
        """Makes it the study of another task: scores between 0 and 1, of which the candidates lose a little."""
        TaskInfo(name="mine:build", score_name=score_name, score_kind=kind, examples=IMAGES).write(TASK_INFO)
        for name in ("info.json", "test_labels.npy"):
            (files.PREPARED / name).unlink()
        files.write_manifest(files.PREPARED)
        for variant in VARIANTS:
            for seed in SEEDS:
                if variant != FAILED:
                    self._make_own_training(variant, seed, kind, score_name)
                if variant in WRONG_WITH_SAME_WEIGHTS:
                    path = files.profile_dir(variant) / f"same_weights_{seed}.npy"
                    np.save(path, own_scores(variant, seed, kind, loss=0.001))
                    files.write_manifest(path.parent)

    def _make_own_training(self, variant: str, seed: int, kind: Literal["score", "metric"], score_name: str) -> None:
        folder, scores = files.train_dir(variant, seed), own_scores(variant, seed, kind, loss=0.002)
        (folder / PREDICTIONS).unlink()
        np.save(folder / SCORES, scores)
        history = pd.read_csv(folder / HISTORY)
        renamed = history.drop(columns="accuracy").rename(columns={"val_accuracy": f"val_{score_name}"})
        renamed.to_csv(folder / HISTORY, index=False)
        score = float(scores.mean() if kind == "score" else scores[0])
        self.edit_training(variant, seed, test_accuracy=None, **{f"test_{score_name}": score})

    def shorten_test_set(self, examples: int) -> None:
        """Leaves so many test examples of a task with a score of each."""
        TaskInfo(name="mine:build", score_name="iou", score_kind="score", examples=examples).write(TASK_INFO)
        files.write_manifest(files.PREPARED)
        for path in files.DATA.rglob("*.npy"):
            np.save(path, np.load(path)[:examples])
            files.write_manifest(path.parent)

    def edit_training(self, variant: str, seed: int, **changes: Any) -> None:
        """Changes fields of `metrics.json`."""
        _edit(TrainingMetrics, files.train_dir(variant, seed) / METRICS, changes)

    def edit_profile(self, name: str, **changes: Any) -> None:
        """Changes fields of `summary.json`."""
        _edit(ProfileSummary, files.profile_dir(name) / SUMMARY, changes)

    def spread_processes(self, name: str, file_name: str, factor: float) -> None:
        """Multiplies the times by `factor` in even processes and divides them by `factor` in odd ones."""
        self._edit_times(name, file_name, lambda table: factor ** (1 - 2 * (table["process"] % 2)))

    def scale_times(self, name: str, file_name: str, factor: float, *, first_call: int = 0) -> None:
        """Multiplies the times by `factor`; those of inference from this call of a turn on."""
        self._edit_times(
            name, file_name, lambda rows: np.where(rows["call"] >= first_call, factor, 1.0) if first_call else factor
        )

    def wait_for_input(self, name: str, *, step_ms: float, cached_ms: float) -> None:
        """Makes a training step of an arm wait for its input, with 1 % of noise from round to round."""
        rows = input_rounds(step_ms, cached_ms, noise=0.01)
        path = files.profile_dir(name) / "input_rounds.csv"
        write_table(path, InputRound, rows)
        files.write_manifest(path.parent)

    def _edit_times(self, name: str, file_name: str, factor: Callable[[pd.DataFrame], Any]) -> None:
        path = files.profile_dir(name) / file_name
        table = pd.read_csv(path)
        (column,) = (column for column in table if column.endswith("_ms"))
        table[column] *= factor(table)
        table.to_csv(path, index=False)
        files.write_manifest(path.parent)

    def add_bridge(self, name: str, **settings: bool) -> None:
        """Writes another bridging arm, with the times of the one that is there and these settings."""
        shutil.copytree(files.profile_dir(BRIDGE), files.profile_dir(name))
        self.edit_profile(name, variant=name, in_force=settings_in_force("float32", **settings))

    def remove_inference(self) -> None:
        """Makes every `inference.csv` what it is without `profile.inference_batch_sizes`."""
        for folder in files.PROFILE.iterdir():
            write_table(folder / "inference.csv", InferenceCall, [])
            files.write_manifest(folder)

    def load(self, seeds: tuple[int, ...] = SEEDS, variants: tuple[str, ...] = VARIANTS) -> Study:
        return load_study("float32", variants, seeds, BATCH_SIZES)

    def compare(self, **params: Any) -> Judging:
        return judged(self.load(), CompareParams(**params))


def _edit(document: type[Document], path: Path, changes: dict[str, Any]) -> None:
    document.model_validate(document.read(path).model_dump() | changes).write(path)
    files.write_manifest(path.parent)


def measured_speedup(ratio: float, *deviations: float, confidence: float = CONFIDENCE) -> Speedup:
    """A speed-up whose processes have these deviations, which add up to zero; each has two rounds."""
    times = (ProcessTimes(10, 1.0, (1 - deviation) / ratio, np.log(ratio) + deviation, 2) for deviation in deviations)
    return Speedup(tuple(times), confidence)


def speedup_between(low: float, high: float) -> Speedup:
    """A speed-up over two processes with this 95 % interval."""
    half = float(np.log(high / low)) / 2 / 12.706204736  # t quantile of one degree of freedom
    return measured_speedup(float(np.sqrt(low * high)), half, -half)


def environment(*instruction_sets: str, gpu: dict[str, str] | None = None, **settings: str) -> dict[str, Any]:
    """What rules read of a machine's fingerprint."""
    return {
        "cpu": {"instruction_sets": list(instruction_sets)},
        "gpus": [] if gpu is None else [gpu],
        "settings": settings,
    }


def operation(
    op_type: str, time_ms: float, dtype: str = "", *, name: str | None = None, tensor_core: bool | None = None
) -> AccountRow:
    """An operation of a traced step; it is in the layer `model` unless a name in the graph is given."""
    layers = Layers(classes={"model": "Model"}, scopes={"model": "model"}, optimizers=("adam",))
    return AccountRow(0, *layers.place(name or f"model/{op_type}", op_type), dtype, time_ms, tensor_core)


def profile(
    metrics: dict[str, float] | None = None,
    operations: Sequence[AccountRow] = (),
    *,
    policy: str = "float32",
    device: str = "CPU",
    entry: dict[str, Any] | None = None,
    in_force: dict[str, Any] | None = None,
    configuration: dict[str, Any] | None = None,
) -> Profile:
    """A profile without raw times, as a rule sees it: what is in force is what the entry requests, unless given."""
    variant = Variant(policy=policy, **(entry or {}))
    requested = {"xla": bool(variant.xla), "tf32": variant.tf32, "onednn": variant.onednn is not False}
    empty = pd.DataFrame()
    return Profile(
        summary(
            "float32",
            entry=variant,
            in_force=settings_in_force(policy, **(requested | (in_force or {}))),
            configuration=CONFIGURATION.model_copy(update={"device": device} | (configuration or {})),
            metrics=metrics or {},
        ),
        pd.DataFrame(columns=[column.name for column in fields(Round)]),
        empty,
        empty,
        empty,
        account=pd.DataFrame(operations, columns=[column.name for column in fields(AccountRow)]),
    )


# How the four repeats of an arm differ, in units of `REPEAT_SD`, differently for each arm and 0 on average.
_REPEATS = {"float32": (-1, 1, -1, 1), files.CONTROL: (-1, -1, 1, 1)}
_REPEATS_OF_CANDIDATES = (1, -1, -1, 1)


def account_rows(operations: Iterable[AccountRow], step_ms: float, name: str) -> list[AccountRow]:
    """Calm steps in which each operation takes its time; the host has the rest."""
    rows, parts = [], list(operations)
    parts += [AccountRow(0, HOST, time_ms=step_ms - sum(part.time_ms for part in parts))]
    for process, factor in enumerate(_of_repeats(name)):
        rows += [replace(part, process=process, time_ms=factor * part.time_ms) for part in parts]
    return rows


def _of_repeats(name: str) -> list[float]:
    return [1 + REPEAT_SD * deviation for deviation in _REPEATS.get(name, _REPEATS_OF_CANDIDATES)]


def accounts_between(before: Profile, after: Profile) -> Accounts | None:
    """Short traces of two arms and a copy, with the operations of their profiles; None if one has none."""
    tables, calm_ms = [], []
    for arm, name in ((before, "float32"), (after, "candidate"), (before, files.CONTROL)):
        step_ms = arm.metrics.get("profiler/step_time_ms", arm.account["time_ms"].sum())
        rows = account_rows(compute_operations(arm), step_ms, name)
        tables.append(pd.DataFrame(list(map(asdict, rows))))
        calm_ms.append(step_ms * pd.Series(_of_repeats(name)))
    if before.account.empty or after.account.empty:
        return None
    return Accounts.scaled(tables, calm_ms)


def given(item: _Compared, **values: Any) -> _Compared:
    """A copy of a case, or of all cases, of which these values are given and all others follow."""
    kind = type(item)
    computed = {name: value for name, value in values.items() if hasattr(kind, name)}
    copy: _Compared = object.__new__(type(kind.__name__, (kind,), computed))
    kept = {name: value for name, value in vars(item).items() if not hasattr(kind, name)}
    vars(copy).update(kept | {name: value for name, value in values.items() if name not in computed})
    if isinstance(copy, Judging):
        copy.cases = tuple(given(case, _judging=copy) for case in copy.cases)
    return copy


def case_of(
    before: Profile | None,
    after: Profile,
    speedup: Speedup | None,
    machine: dict[str, Any],
    *,
    trainings: tuple[Training, ...] = (),
    classes: int | None = None,
    judged_policies: Sequence[str] = (),
    **values: Any,
) -> Case:
    """Two profiles side by side as a rule sees them, with a speed-up of training and other values that are given."""
    result = VariantResult(after.summary.variant, trainings, after)
    case = Case(result, before, environment=machine, classes=classes, judged_policies=judged_policies)
    return given(case, **{"speedups": {} if speedup is None else {TRAIN: speedup}} | values)


def accounted(case: Case) -> Case:
    """The case with an account of the operations of its profiles."""
    assert case.baseline is not None
    accounts = accounts_between(case.baseline, case.candidate)
    if accounts is None:
        return case
    factor = accounts.step[0]["baseline_ms"].iloc[0] / case.speedups[TRAIN].baseline_time_ms
    timed = tuple(
        replace(times, baseline_ms=factor * times.baseline_ms, candidate_ms=factor * times.candidate_ms)
        for times in case.speedups[TRAIN].by_process
    )
    speedup = replace(case.speedups[TRAIN], by_process=timed)  # as long as the traced steps
    account = account_of(accounts, speedup, None)
    assert account is not None
    account = with_names({"candidate": account})["candidate"]
    return given(case, speedups={**case.speedups, TRAIN: speedup}, accounts=accounts, account=account)


def html_of(judging: Judging) -> str:
    """The page."""
    return render_report(document_of(judging))


def terminal_of(judging: Judging) -> RenderableType:
    """The terminal's tables and lines."""
    return details(document_of(judging))


def write_results_of(judging: Judging) -> document.Comparison:
    """Writes `data/compare/`."""
    comparison = document_of(judging)
    write_results(comparison, judging.study)
    return comparison


@pytest.fixture(scope="session")
def complete_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("complete")
    with contextlib.chdir(root):
        SmallStudy(root).write()
    return root / "data"


@pytest.fixture
def project(tmp_path: Path, complete_data: Path, monkeypatch: pytest.MonkeyPatch) -> SmallStudy:
    """A project whose `data/` is complete; its root is the working folder."""
    shutil.copytree(complete_data, tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    return SmallStudy(tmp_path)


@functools.cache
def _compared(root: Path) -> Judging:
    with contextlib.chdir(root):
        return SmallStudy(root).compare()


@pytest.fixture
def comparison(project: SmallStudy, complete_data: Path) -> Judging:
    """That of the project as it is; judged once for all tests."""
    return _compared(complete_data.parent)


def sentences(case: Case) -> tuple[str, ...]:
    """What would settle the open verdicts of a candidate."""
    return tuple(step.sentence for step in next_steps(case))
