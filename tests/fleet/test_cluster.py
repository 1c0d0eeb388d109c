"""Trainings on a Ray cluster of a head and two nodes, which are processes of this machine."""

from __future__ import annotations

import re
import subprocess
import threading
from pathlib import Path

import numpy as np
import pytest

from tests.faults.servers import mlflow_server
from tests.fleet.conftest import Cluster, cluster_of, wait_for
from tests.pipeline.conftest import Checkout

pytest.importorskip("ray")
pytestmark = pytest.mark.fleet

LIMIT_S = 240.0
TRAININGS = ("float32-0", "float32-1", "mixed_bfloat16-0", "mixed_bfloat16-1")
EPOCHS = 8


class Fleet:
    """A running `python -m stages.fleet train`."""

    def __init__(self, home: Checkout, cluster: Cluster, **variables: str) -> None:
        command = ["python", "-m", "stages.fleet", "train"]
        environment = home_environment(home) | {"RAY_ADDRESS": cluster.address, **variables}
        self._process = subprocess.Popen(
            command, cwd=home.root, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(line.rstrip())

    @property
    def output(self) -> str:
        return "\n".join(self.lines)

    def interrupt(self) -> None:
        self._process.send_signal(2)

    def wait(self) -> int:
        try:
            return self._process.wait(timeout=LIMIT_S)
        finally:
            self._process.kill()
            self._reader.join(timeout=10)


def home_environment(home: Checkout) -> dict[str, str]:
    from tests.pipeline.conftest import _environment

    return _environment(home.root)


def test_four_trainings_with_one_machine_killed(home: Checkout, tmp_path: Path) -> None:
    home.configure({"train.seeds": [0, 1], "train.epochs": EPOCHS, "train.batch_size": 32})
    checkpoints, store = tmp_path / "checkpoints", tmp_path / "tracking"
    store.mkdir()
    with mlflow_server(store) as server:
        shared = {"HALFSTEP_CHECKPOINTS": str(checkpoints), "MLFLOW_TRACKING_URI": server.uri}
        with cluster_of(tmp_path, {"node1": shared, "node2": shared}) as cluster:
            fleet = Fleet(home, cluster, MLFLOW_TRACKING_URI=server.uri)
            killed = kill_in_mid_training(cluster, checkpoints, fleet)
            assert fleet.wait() == 0, fleet.output
        assert "4 of 4 trainings are done" in fleet.output
        assert re.search(r"lost: .*retry 1 of 2", fleet.output), fleet.output
        assert re.search(r"resumed from step \d+, in epoch [2-8]/8", fleet.output), fleet.output
        started = home.check_output("dvc", "repro", "--pull", "train", MLFLOW_TRACKING_URI=server.uri)
        assert set(re.findall(r"Running stage '(.*)'", started)) == {"environment"}
        require_one_finished_run_each(server.uri)
    require_equal_to_undisturbed(home, killed)


def kill_in_mid_training(cluster: Cluster, checkpoints: Path, fleet: Fleet) -> str:
    """Kills the first node when a training there has saved an epoch. Returns the name of the training."""

    def saved() -> list[str]:
        return [name for name in cluster.trainings("node1") if list((checkpoints / name).rglob("[0-9]*.npz"))]

    wait_for(saved, LIMIT_S, lambda: fleet.output)
    (name,) = saved()
    cluster.kill("node1")
    return name


def require_one_finished_run_each(uri: str) -> None:
    from mlflow import MlflowClient

    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("mixed-precision")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id], "tags.stage = 'train'")
    assert sorted(f"{run.data.tags['variant']}-{run.data.tags['seed']}" for run in runs) == list(TRAININGS)
    assert {run.info.status for run in runs} == {"FINISHED"}
    assert not client.search_runs([experiment.experiment_id], "attributes.status = 'RUNNING'")
    for run in runs:
        steps = [metric.step for metric in client.get_metric_history(run.info.run_id, "val_loss")]
        assert steps == list(range(EPOCHS))


def require_equal_to_undisturbed(home: Checkout, name: str) -> None:
    path = home.root / "data" / "train" / name / "predictions.npy"
    found = np.load(path)
    home.check_output("dvc", "repro", "--force", "--single-item", f"train@{name}")
    assert np.array_equal(np.load(path), found)
