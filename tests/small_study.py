"""A complete small `data/` with known numbers, written by the stages' own writers; and fixtures on copies of it."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from stages import files
from stages.compare.comparison import Comparison, compare
from stages.params import CompareParams, Variant
from stages.profile.summary import timing_metrics
from stages.results.artifact import Document, write_table
from stages.results.prepared import PreparedInfo
from stages.results.profile import (
    SUMMARY,
    Call,
    Configuration,
    InForce,
    InputRound,
    OperationTime,
    Profile,
    ProfileSummary,
    Protocol,
    RawTimes,
    Round,
    Step,
    write_profile,
)
from stages.results.study import Study, load_study
from stages.results.training import METRICS, TrainingMetrics, write_training

VARIANTS = ("float32", "mixed_float16", "mixed_bfloat16", "float16")
FAILED = "float16"
SEEDS = (1, 2, 3)
BATCH_SIZES = (1, 32)
CLASSES = ("ant", "bee", "cat", "dog")
IMAGES = 400
EPOCHS = 5
LOSS_SCALE = 32768.0
STEP_MS = 10.0
SPEEDUPS = {"float32": 1.0, "_control": 1.0, "mixed_float16": 0.25, "mixed_bfloat16": 1.6}
# Deviations of the processes' log ratios: they add up to zero, so that the ratios above are exact.
PROCESS_OFFSETS = (-0.010, 0.010, -0.006, 0.006)
WRONG_IMAGES = {"float32": 8, "mixed_float16": 8, "mixed_bfloat16": 9}

ENVIRONMENT = {
    "device": "Test CPU 9000, 2 cores",
    "cpu": {"model": "Test CPU 9000", "usable_cores": 2, "instruction_sets": ["avx2", "avx512_bf16"]},
    "gpus": [],
    "versions": {"python": "3.11.7", "tensorflow": "2.21.0"},
    "settings": {},
}

OPERATIONS = {
    "float32": [("Conv2D", 4.0, "float32"), ("MatMul", 1.0, "float32"), ("Relu", 0.5, "float32")],
    "mixed_float16": [("Conv2D", 24.0, "float16"), ("MatMul", 6.0, "float16"), ("Cast", 3.0, "float16")],
    "mixed_bfloat16": [("Conv2D", 2.0, "bfloat16"), ("MatMul", 0.5, "bfloat16"), ("Cast", 0.1, "bfloat16")],
    "_control": [],
}
COMPUTE_16BIT_PERCENT = {"float32": 0.0, "_control": 0.0, "mixed_float16": 90.0, "mixed_bfloat16": 60.0}
CONFIGURATION = Configuration(
    device="CPU",
    batch_size=32,
    input_shape=(32, 32, 3),
    parameters=11_330,
    optimizer="adam",
    intra_op_threads=0,
    inter_op_threads=0,
    input_threads=2,
    op_determinism=False,
    layer_widths=(8, 16, 32),
    data_sha256="d" * 64,
)
PROTOCOL = Protocol(
    confidence=0.95,
    processes=4,
    rounds=20,
    timing_seconds=30.0,
    ended_by="max_seconds",
    target_precision=0.02,
    interim_looks=1,
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


def epoch_row(variant: str, seed: int, epoch: int) -> SimpleNamespace:
    """One row of `history.csv`; epochs count from 0."""
    return SimpleNamespace(
        epoch=epoch,
        loss=1 / (epoch + 1),
        accuracy=1 - 0.3 / (epoch + 1),
        val_loss=1.1 / (epoch + 1),
        val_accuracy=1 - 0.4 / (epoch + 1 + 0.1 * seed + 0.2 * VARIANTS.index(variant)),
        learning_rate=0.001,
        epoch_time_s=2.0,
        loss_scale=LOSS_SCALE,
        skipped_steps=1,
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


def predictions(wrong: int, seed: int) -> NDArray[np.float32]:
    """Probabilities, `(images, classes)`: the first `wrong` images, counted from `seed`, get the next class."""
    predicted = labels().copy()
    predicted[seed : seed + wrong] = (predicted[seed : seed + wrong] + 1) % len(CLASSES)
    probabilities = np.full((IMAGES, len(CLASSES)), 0.1, dtype=np.float32)
    probabilities[np.arange(IMAGES), predicted] = 0.7
    return probabilities


def time_ms(name: str, process: int, baseline_ms: float) -> float:
    """Time in one process. Later processes are slower for all arms alike, which pairing removes."""
    shared = baseline_ms * (1 + 0.2 * process)
    own = 0.0 if name == "float32" else PROCESS_OFFSETS[process]
    return float(shared / (SPEEDUPS[name] * np.exp(own)))


def raw_times(name: str) -> RawTimes:
    places = [(process, number) for process in range(4) for number in range(5)]
    return RawTimes(
        rounds=[Round(p, r, 0, 6, 6 * time_ms(name, p, STEP_MS)) for p, r in places],
        input_rounds=[InputRound(3, 0, kind, 6, 6 * time_ms(name, 3, STEP_MS)) for kind in ("pipeline", "cached")],
        steps=[
            Step(p, r, s, time_ms(name, p, STEP_MS) * (1 + 0.02 * s))
            for p in range(4)
            for r in range(2)
            for s in range(6)
        ],
        calls=[
            Call(p, r, size, call, time_ms(name, p, 1.0 + 0.1 * size) * (1 + 0.01 * call))
            for p, r in places
            for size in BATCH_SIZES
            for call in range(3)
        ],
    )


def summary(name: str, **changes: Any) -> ProfileSummary:
    """The summary of an arm; its fields can be changed."""
    policy = "float32" if name == "_control" else name
    traced_ms = STEP_MS / SPEEDUPS[name]
    metrics = timing_metrics(raw_times(name), CONFIGURATION.batch_size) | {
        "profiler/step_time_ms": traced_ms,
        "profiler/host_compute_ms": 0.85 * traced_ms,
        "profiler/input_ms": 0.05 * traced_ms,
        "profiler/other_ms": 0.10 * traced_ms,
        "profiler/compute_16bit_percent": COMPUTE_16BIT_PERCENT[name],
        "profiler/overhead_percent": 4.0,
        "memory/peak_mib": 210.0 if policy == "float32" else 180.0,
    }
    operations = tuple(
        OperationTime(type=kind, name=f"model/{kind}", occurrences=8, self_time_ms_per_step=ms, dtype=dtype)
        for kind, ms, dtype in OPERATIONS[name]
    )
    values: dict[str, Any] = {
        "variant": name,
        "entry": Variant(policy=policy),  # type: ignore[arg-type]
        "configuration": CONFIGURATION,
        "in_force": InForce(policy=policy, xla=False, tf32=True, onednn=True),
        "protocol": PROTOCOL,
        "metrics": metrics,
        "operations": operations,
    }
    return ProfileSummary(**(values | changes))


def write_small_profile(name: str, trace: Path, **changes: Any) -> None:
    write_profile(name, summary(name, **changes), raw_times(name), None if name == "_control" else trace)


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

    def make_synthetic(self) -> None:
        write_prepared(synthetic=True)

    def rename_classes(self, names: Sequence[str]) -> None:
        """Gives the test images these classes in turn. The predictions still name the first four."""
        np.save(files.PREPARED / "test_labels.npy", (np.arange(IMAGES) % len(names)).astype(np.int32))
        _edit(PreparedInfo, files.PREPARED / "info.json", {"classes": tuple(names)})

    def edit_training(self, variant: str, seed: int, **changes: Any) -> None:
        """Changes fields of `metrics.json`."""
        _edit(TrainingMetrics, files.train_dir(variant, seed) / METRICS, changes)

    def edit_profile(self, name: str, **changes: Any) -> None:
        """Changes fields of `summary.json`."""
        _edit(ProfileSummary, files.profile_dir(name) / SUMMARY, changes)

    def spread_processes(self, name: str, file_name: str, factor: float) -> None:
        """Multiplies the last column, a time, by `factor` in even processes and divides it by `factor` in odd ones."""
        path = files.profile_dir(name) / file_name
        table = pd.read_csv(path)
        table.iloc[:, -1] *= factor ** (1 - 2 * (table["process"] % 2))
        table.to_csv(path, index=False)
        files.write_manifest(path.parent)

    def remove_inference(self) -> None:
        """Makes every `inference.csv` what it is without `profile.inference_batch_sizes`."""
        for folder in files.PROFILE.iterdir():
            write_table(folder / "inference.csv", Call, [])
            files.write_manifest(folder)

    def load(self, seeds: tuple[int, ...] = SEEDS, variants: tuple[str, ...] = VARIANTS) -> Study:
        return load_study("float32", variants, seeds, BATCH_SIZES)

    def compare(self, **params: Any) -> Comparison:
        return compare(self.load(), CompareParams(**params))


def _edit(document: type[Document], path: Path, changes: dict[str, Any]) -> None:
    document.model_validate(document.read(path).model_dump() | changes).write(path)
    files.write_manifest(path.parent)


def environment(*instruction_sets: str, gpu: dict[str, str] | None = None, **settings: str) -> dict[str, Any]:
    """What rules read of a machine's fingerprint."""
    return {
        "cpu": {"instruction_sets": list(instruction_sets)},
        "gpus": [] if gpu is None else [gpu],
        "settings": settings,
    }


def operation(op_type: str, time_ms: float, dtype: str | None = None, **changes: Any) -> OperationTime:
    """An operation of a traced step; it is called `model/<type>` unless a name is given."""
    values: dict[str, Any] = {
        "type": op_type,
        "name": f"model/{op_type}",
        "occurrences": 1,
        "self_time_ms_per_step": time_ms,
        "dtype": dtype,
    }
    return OperationTime(**(values | changes))


def profile(
    metrics: dict[str, float] | None = None,
    operations: Sequence[OperationTime] = (),
    *,
    policy: str = "float32",
    device: str = "CPU",
    entry: dict[str, Any] | None = None,
    in_force: dict[str, Any] | None = None,
    configuration: dict[str, Any] | None = None,
) -> Profile:
    """A profile without raw times, as a rule sees it: what is in force is what the entry requests, unless given."""
    variant = Variant(policy=policy, **(entry or {}))  # type: ignore[arg-type]
    empty = pd.DataFrame()
    return Profile(
        summary(
            "float32",
            entry=variant,
            in_force=InForce(**(variant.model_dump() | (in_force or {}))),
            configuration=CONFIGURATION.model_copy(update={"device": device} | (configuration or {})),
            metrics=metrics or {},
            operations=tuple(operations),
        ),
        *(empty for _ in range(4)),
    )


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


@pytest.fixture
def comparison(project: SmallStudy) -> Comparison:
    return project.compare()
