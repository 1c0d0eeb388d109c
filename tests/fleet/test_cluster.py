"""Trainings on a Ray cluster of a head and two nodes, which are processes of this machine."""

from __future__ import annotations

import re
import subprocess
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import pytest

from tests.faults.servers import mlflow_server
from tests.fleet.conftest import Cluster, cluster_of, wait_for
from tests.pipeline.conftest import Checkout, child_environment, started_stages

pytest.importorskip("ray")
pytestmark = pytest.mark.fleet

LIMIT_S = 240.0
TRAININGS = ("float32-0", "float32-1", "mixed_bfloat16-0", "mixed_bfloat16-1")
EPOCHS = 8


class Fleet:
    """A running `python -m stages.fleet train`."""

    def __init__(self, home: Checkout, cluster: Cluster, **variables: str) -> None:
        command = ["python", "-m", "stages.fleet", "train"]
        environment = child_environment(home.root) | {"RAY_ADDRESS": cluster.address, **variables}
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


@dataclass(frozen=True)
class Machines:
    """A cluster whose nodes share a folder for checkpoints and a tracking server."""

    cluster: Cluster
    checkpoints: Path
    uri: str


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    folder = tmp_path_factory.mktemp("machines")
    checkpoints, store = folder / "checkpoints", folder / "tracking"
    store.mkdir()
    with mlflow_server(store) as server:
        shared = {"HALFSTEP_CHECKPOINTS": str(checkpoints), "MLFLOW_TRACKING_URI": server.uri}
        with cluster_of(folder, {"node1": shared, "node2": shared}) as cluster:
            yield Machines(cluster, checkpoints, server.uri)


def test_four_trainings_with_one_machine_killed(home: Checkout, machines: Machines) -> None:
    home.configure({"train.seeds": [0, 1], "train.epochs": EPOCHS, "train.batch_size": 32})
    fleet = Fleet(home, machines.cluster, MLFLOW_TRACKING_URI=machines.uri)
    killed = kill_in_mid_training(machines, fleet)
    assert fleet.wait() == 0, fleet.output
    assert "4 of 4 trainings are done" in fleet.output
    assert re.search(r"retry 1 of 2: \w+", fleet.output), fleet.output
    assert re.search(r"resumed from step \d+, in epoch [2-8]/8", fleet.output), fleet.output
    assert repro_at_home(home, machines.uri) == {"environment"}
    require_one_finished_run_each(machines.uri, "mixed-precision", TRAININGS)
    require_equal_to_undisturbed(home, killed)


def repro_at_home(home: Checkout, uri: str) -> set[str]:
    """The stages that run at home to get the trainings."""
    return started_stages(home.check_output("dvc", "repro", "--pull", "train", MLFLOW_TRACKING_URI=uri))


def kill_in_mid_training(machines: Machines, fleet: Fleet) -> str:
    """Kills the first node when a training there has saved an epoch. Returns the name of the training."""

    def saved() -> list[str]:
        running = [name_of(process) for process in machines.cluster.trainings("node1")]
        return [name for name in running if list((machines.checkpoints / name).rglob("[0-9]*.npz"))]

    wait_for(saved, LIMIT_S, lambda: fleet.output)
    (name,) = saved()
    machines.cluster.kill("node1")
    return name


def name_of(process: psutil.Process) -> str:
    command = process.cmdline()
    return f"{command[command.index('--variant') + 1]}-{command[command.index('--seed') + 1]}"


def require_one_finished_run_each(uri: str, experiment: str, trainings: Sequence[str]) -> None:
    from mlflow import MlflowClient

    client = MlflowClient(uri)
    found = client.get_experiment_by_name(experiment)
    assert found is not None
    runs = client.search_runs([found.experiment_id], "tags.stage = 'train'")
    assert sorted(f"{run.data.tags['variant']}-{run.data.tags['seed']}" for run in runs) == list(trainings)
    assert {run.info.status for run in runs} == {"FINISHED"}
    assert not client.search_runs([found.experiment_id], "attributes.status = 'RUNNING'")
    for run in runs:
        steps = [metric.step for metric in client.get_metric_history(run.info.run_id, "val_loss")]
        assert sorted(steps) == list(range(EPOCHS))


def require_equal_to_undisturbed(home: Checkout, name: str) -> None:
    path = home.root / "data" / "train" / name / "predictions.npy"
    found = np.load(path)
    home.check_output("dvc", "repro", "--force", "--single-item", f"train@{name}")
    assert np.array_equal(np.load(path), found)
