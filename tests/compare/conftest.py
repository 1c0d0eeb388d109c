"""A whole small `data/` tree with known numbers: a baseline, two candidates, an arm that failed, and the control."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from stages import files
from stages.compare.arms import Study
from stages.compare.comparison import Comparison, compare
from stages.compare.loading import load_study
from stages.params import CompareParams

VARIANTS = ("float32", "mixed_float16", "mixed_bfloat16", "float16")
FAILED = "float16"
SEEDS = (1, 2, 3)
BATCH_SIZES = (1, 32)
CLASSES = ["ant", "bee", "cat", "dog"]
IMAGES = 400
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

ENTRIES = {
    "float32": {"policy": "float32", "xla": False, "tf32": True},
    "_control": {"policy": "float32", "xla": False, "tf32": True},
    "mixed_float16": {"policy": "mixed_float16", "xla": False, "tf32": True},
    "mixed_bfloat16": {"policy": "mixed_bfloat16", "xla": False, "tf32": True},
}
OPERATIONS = {
    "float32": [("Conv2D", 4.0, "float32"), ("MatMul", 1.0, "float32"), ("Relu", 0.5, "float32")],
    "mixed_float16": [("Conv2D", 24.0, "float16"), ("MatMul", 6.0, "float16"), ("Cast", 3.0, "float16")],
    "mixed_bfloat16": [("Conv2D", 2.0, "bfloat16"), ("MatMul", 0.5, "bfloat16"), ("Cast", 0.1, "bfloat16")],
}
OPERATIONS["_control"] = OPERATIONS["float32"]
COMPUTE_16BIT_PERCENT = {"float32": 0.0, "_control": 0.0, "mixed_float16": 90.0, "mixed_bfloat16": 60.0}


def write_prepared(synthetic: bool = False) -> None:
    files.PREPARED.mkdir(parents=True, exist_ok=True)
    np.save(files.PREPARED / "test_labels.npy", labels())
    info = {
        "source": "synthetic" if synthetic else "digits",
        "synthetic": synthetic,
        "classes": CLASSES,
        "images": {"train": 900, "validation": 100, "test": IMAGES},
    }
    files.write_json(files.PREPARED / "info.json", info)
    files.write_manifest(files.PREPARED)


def labels() -> np.ndarray[Any, np.dtype[np.int32]]:
    return (np.arange(IMAGES) % len(CLASSES)).astype(np.int32)


def write_training(variant: str, seed: int) -> None:
    folder = files.train_dir(variant, seed)
    folder.mkdir(parents=True, exist_ok=True)
    if variant == FAILED:
        files.write_json(folder / "metrics.json", {"status": "failed", "reason": "the loss is nan in epoch 2"})
        files.write_manifest(folder)
        return
    metrics = {
        "status": "finished",
        "test_accuracy": 1 - WRONG_IMAGES[variant] / IMAGES,
        "test_loss": 0.1,
        "train_time_s": 12.0,
        "train_images_per_s": 600.0,
    }
    if variant == "mixed_float16":
        metrics["loss_scale"] = 32768.0
    files.write_json(folder / "metrics.json", metrics)
    np.save(folder / "predictions.npy", predictions(WRONG_IMAGES[variant], seed))
    history(variant, seed).to_csv(folder / "history.csv", index=False)
    files.write_manifest(folder)


def predictions(wrong: int, seed: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Probabilities, `(images, classes)`: the first `wrong` images, counted from `seed`, get the next class."""
    predicted = labels().copy()
    predicted[seed : seed + wrong] = (predicted[seed : seed + wrong] + 1) % len(CLASSES)
    probabilities = np.full((IMAGES, len(CLASSES)), 0.1, dtype=np.float32)
    probabilities[np.arange(IMAGES), predicted] = 0.7
    return probabilities


def history(variant: str, seed: int) -> pd.DataFrame:
    epochs = np.arange(1, 6)
    return pd.DataFrame(
        {
            "epoch": epochs,
            "loss": 1 / epochs,
            "accuracy": 1 - 0.3 / epochs,
            "val_loss": 1.1 / epochs,
            "val_accuracy": 1 - 0.4 / (epochs + 0.1 * seed + 0.2 * VARIANTS.index(variant)),
            "learning_rate": 0.001,
            "epoch_time_s": 2.0,
        }
    )


def write_profile(name: str) -> None:
    folder = files.profile_dir(name)
    folder.mkdir(parents=True, exist_ok=True)
    rounds(name).to_csv(folder / "rounds.csv", index=False)
    inference(name).to_csv(folder / "inference.csv", index=False)
    timings(name).to_csv(folder / "timings.csv", index=False)
    files.write_json(folder / "summary.json", summary(name))
    files.write_manifest(folder)


def time_ms(name: str, process: int, baseline_ms: float) -> float:
    """Time in one process: slower in later processes for all arms alike, which pairing takes out again."""
    shared = baseline_ms * (1 + 0.2 * process)
    own = 0.0 if name == "float32" else PROCESS_OFFSETS[process]
    return float(shared / (SPEEDUPS[name] * np.exp(own)))


def rounds(name: str) -> pd.DataFrame:
    rows = [(p, r, 0, 6, 6 * time_ms(name, p, STEP_MS)) for p in range(4) for r in range(5)]
    return pd.DataFrame(rows, columns=["process", "round", "position", "steps", "round_time_ms"])


def inference(name: str) -> pd.DataFrame:
    rows = [
        (p, r, size, call, time_ms(name, p, 1.0 + 0.1 * size) * (1 + 0.01 * call))
        for p in range(4)
        for r in range(5)
        for size in BATCH_SIZES
        for call in range(3)
    ]
    return pd.DataFrame(rows, columns=["process", "round", "batch_size", "call", "latency_ms"])


def timings(name: str) -> pd.DataFrame:
    rows = [(p, r, s, time_ms(name, p, STEP_MS) * (1 + 0.02 * s)) for p in range(4) for r in range(2) for s in range(6)]
    return pd.DataFrame(rows, columns=["process", "round", "step", "step_time_ms"])


def summary(name: str) -> dict[str, Any]:
    step_ms = timings(name)["step_time_ms"]
    traced_ms = STEP_MS / SPEEDUPS[name]
    metrics = {
        "step_time_ms/p50": float(step_ms.quantile(0.50)),
        "step_time_ms/p95": float(step_ms.quantile(0.95)),
        "step_time_ms/mean": float(step_ms.mean()),
        "train_images_per_s": 32_000 / float(step_ms.quantile(0.50)),
        "profiler/step_time_ms": traced_ms,
        "profiler/host_compute_ms": 0.85 * traced_ms,
        "profiler/input_ms": 0.05 * traced_ms,
        "profiler/other_ms": 0.10 * traced_ms,
        "profiler/compute_16bit_percent": COMPUTE_16BIT_PERCENT[name],
        "profiler/overhead_percent": 4.0,
        "memory/peak_mib": 210.0 if ENTRIES[name]["policy"] == "float32" else 180.0,
        **inference_metrics(name),
    }
    operations = [
        {"type": kind, "name": f"model/{kind}", "occurrences": 8, "self_time_ms_per_step": ms, "dtype": dtype}
        for kind, ms, dtype in OPERATIONS[name]
    ]
    return {
        "variant": name,
        "metrics": metrics,
        "entry": ENTRIES[name],
        "configuration": {"batch_size": 32, "input_shape": [32, 32, 3], "steps_per_round": 6},
        "operations": operations,
        "warnings": [],
        "protocol": {"confidence": 0.95, "warnings": []},
        "device_type": "CPU",
    }


def inference_metrics(name: str) -> dict[str, float]:
    calls = inference(name).groupby("batch_size")["latency_ms"]
    quantiles = {f"p{percent}": calls.quantile(percent / 100) for percent in (50, 95, 99)}
    metrics = {f"inference/b{size}/{p}_ms": float(at[size]) for size in BATCH_SIZES for p, at in quantiles.items()}
    return metrics | {
        f"inference/b{size}/images_per_s": 1000 * size / metrics[f"inference/b{size}/p50_ms"] for size in BATCH_SIZES
    }


class Project:
    """The tree as tests use it: what it holds, and how to change it."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self) -> None:
        write_prepared()
        files.write_json(files.ENVIRONMENT_FILE, files.sealed(ENVIRONMENT))
        for variant in VARIANTS:
            for seed in SEEDS:
                write_training(variant, seed)
        for name in SPEEDUPS:
            write_profile(name)

    def make_synthetic(self) -> None:
        write_prepared(synthetic=True)

    def edit(self, path: Path, **changes: Any) -> None:
        """Changes keys of a stage's JSON object, and its folder's manifest with it."""
        files.write_json(path, files.read_json(path) | changes)
        files.write_manifest(path.parent)

    def load(self, seeds: tuple[int, ...] = SEEDS, variants: tuple[str, ...] = VARIANTS) -> Study:
        return load_study("float32", variants, seeds, BATCH_SIZES)

    def compare(self, **params: Any) -> Comparison:
        return compare(self.load(), CompareParams(**params))


@pytest.fixture(scope="session")
def complete_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete `data/`, written once; tests work on copies of it."""
    root = tmp_path_factory.mktemp("complete")
    with contextlib.chdir(root):
        Project(root).write()
    return root / "data"


@pytest.fixture
def project(tmp_path: Path, complete_data: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project whose `data/` is complete; its root is the working folder."""
    shutil.copytree(complete_data, tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    return Project(tmp_path)


@pytest.fixture
def study(project: Project) -> Study:
    return project.load()


@pytest.fixture
def comparison(study: Study) -> Comparison:
    return compare(study, CompareParams())
