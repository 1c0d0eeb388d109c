"""A small training that is killed and started again, and its results.

Each kill is SIGKILL to the whole process group.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import psutil
import yaml
from mlflow import MlflowClient

from halfstep.machine.fingerprint import fingerprint
from halfstep.params.schema import DataParams
from halfstep.prepare.images.pipeline import prepare
from halfstep.system import files

ROOT = Path(__file__).parents[2]
MARK = "HALFSTEP_KILLS"  # environment variable of every process that is started here
VARIANT, SEED = "float32", 0
TRAIN: dict[str, Any] = {
    "epochs": 6,
    "batch_size": 8,
    "augment": {"flip": True, "rotate_degrees": 10.0, "shift_fraction": 0.1},  # uses random numbers, too
}
LIMIT_S = 120.0


@dataclass(frozen=True)
class Project:
    """A directory in which `python -m stages.train` can run."""

    root: Path

    @classmethod
    def create(cls, root: Path, epochs: int = TRAIN["epochs"]) -> Project:
        """Writes synthetic images, parameters and the description of the machine to a new directory."""
        root.mkdir(parents=True)
        data = DataParams(source="synthetic", synthetic_images=96, synthetic_classes=4, image_size=8)
        prepare(data, root / files.PREPARED)
        files.write_json(root / files.ENVIRONMENT_FILE, fingerprint())
        (root / "params.yaml").write_text(yaml.safe_dump({"train": TRAIN | {"epochs": epochs}}), encoding="utf-8")
        MlflowClient(f"sqlite:///{root}/mlflow.db").search_experiments()  # its first use takes seconds
        return cls(root)

    def start(self) -> subprocess.Popen[str]:
        """Starts the training in a new process group."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("MLFLOW_", "DVC_"))}
        return subprocess.Popen(
            [sys.executable, "-m", "stages.train", "--variant", VARIANT, "--seed", str(SEED)],
            cwd=self.root,
            env=kept | {"PYTHONPATH": str(ROOT), MARK: str(self.root), "CUDA_VISIBLE_DEVICES": "-1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def train(self) -> str:
        """Trains to the end, and returns the output."""
        process = self.start()
        output, _ = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 0, output
        return output

    def train_and_kill(self, is_due: Callable[[], bool]) -> tuple[bool, str]:
        """Starts the training and kills it when `is_due`. Returns whether it was killed, and its output."""
        process = self.start()
        deadline = time.monotonic() + LIMIT_S
        while process.poll() is None and not is_due():
            assert time.monotonic() < deadline, "it neither ended nor reached the time of its kill"
            time.sleep(0.002)
        os.killpg(process.pid, signal.SIGKILL) if process.poll() is None else None
        output, _ = process.communicate()
        assert process.returncode in (0, -signal.SIGKILL), output
        return process.returncode != 0, output

    def checkpoints(self) -> list[Path]:
        """Files of the existing checkpoints, the oldest first."""
        return sorted((self.root / files.WORK_DIR / "checkpoints").rglob("[0-9]*.npz"))

    def remove_results(self) -> None:
        """Removes the results, as DVC does before it starts the stage."""
        shutil.rmtree(self.root / files.train_dir(VARIANT, SEED), ignore_errors=True)

    def result(self) -> dict[str, np.ndarray]:
        """Everything that must be equal: weights, optimizer state, predictions, and the history without times."""
        folder = self.root / files.train_dir(VARIANT, SEED)
        files.verify_manifest(folder)
        history = pd.read_csv(folder / "history.csv").drop(columns="epoch_time_s")
        arrays = {f"history/{name}": history[name].to_numpy() for name in history}
        return arrays | _weights(folder / "model.keras") | {"predictions": np.load(folder / "predictions.npy")}

    def run_statuses(self) -> list[str]:
        """Statuses of the runs in the tracking store, the oldest first."""
        client = MlflowClient(f"sqlite:///{self.root}/mlflow.db")
        ids = [experiment.experiment_id for experiment in client.search_experiments()]
        return [run.info.status for run in client.search_runs(ids, order_by=["attributes.start_time ASC"])]

    def processes(self) -> list[int]:
        """IDs of the live processes that were started for this project, and of their children."""
        return [process.pid for process in psutil.process_iter() if mark_of(process) == str(self.root)]


def _weights(path: Path) -> dict[str, np.ndarray]:
    with zipfile.ZipFile(path) as archive, archive.open("model.weights.h5") as stream, h5py.File(stream) as weights:
        arrays: dict[str, np.ndarray] = {}
        weights.visititems(lambda name, item: arrays.update({name: item[()]} if isinstance(item, h5py.Dataset) else {}))
    return arrays


def mark_of(process: psutil.Process) -> str | None:
    try:
        alive = process.status() != psutil.STATUS_ZOMBIE
        return process.environ().get(MARK) if alive else None
    except (psutil.Error, OSError):
        return None


def are_equal(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    """Whether two results are equal, bit for bit."""
    return set(one) == set(other) and all(np.array_equal(one[name], other[name]) for name in one)


def random_times(duration_s: float, seed: int) -> Iterator[Callable[[], bool]]:
    """Random times in the duration of a process. Each starts to count when it is requested."""
    draws = random.Random(seed)
    while True:
        due_s = time.monotonic() + draws.uniform(0.0, duration_s)
        yield lambda due_s=due_s: time.monotonic() >= due_s  # type: ignore[misc]
