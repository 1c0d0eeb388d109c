"""`python -m halfstep fleet train` on three nodes of this machine, some of which fail or are lost."""

from __future__ import annotations

import re
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.fleet.conftest import Cluster, cluster_of, wait_for
from tests.pipeline.conftest import Checkout, child_environment, started_stages

pytest.importorskip("ray")
pytestmark = pytest.mark.fleet

LIMIT_S = 240.0
NAME = "float32-0"


class Fleet:
    """A running `python -m halfstep fleet train`."""

    def __init__(self, home: Checkout, cluster: Cluster) -> None:
        environment = child_environment(home.root) | {"RAY_ADDRESS": cluster.address}
        self.process = subprocess.Popen(
            ["python", "-m", "halfstep", "fleet", "train"],
            cwd=home.root,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())

    @property
    def output(self) -> str:
        return "\n".join(self.lines)

    def wait(self) -> int:
        try:
            return self.process.wait(timeout=LIMIT_S)
        finally:
            self.process.kill()
            self._reader.join(timeout=10)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("machines")


@pytest.fixture(scope="module")
def cluster(folder: Path) -> Iterator[Cluster]:
    """A node that trains, and one whose disk cannot be written, as far as its user can say."""
    (folder / "unwritable").write_text("a file is where the folder of the node should be")
    shared = {"HALFSTEP_CHECKPOINTS": str(folder / "checkpoints")}
    with cluster_of(folder, {"node1": shared, "unwritable": shared}) as ray_cluster:
        yield ray_cluster


def test_nodes_that_cannot_train_are_left_out_and_the_results_are_those_of_one_machine(
    home: Checkout, cluster: Cluster, folder: Path
) -> None:
    """Another node joins in the meantime, which has another TensorFlow."""
    home.configure({"train.epochs": 1})
    (home.root / "untracked.txt").write_text("it travels, too")
    fleet = Fleet(home, cluster)
    wait_for(lambda: ": started" in fleet.output, LIMIT_S, lambda: fleet.output)
    other = folder / "packages" / "tensorflow-9.9.9.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: tensorflow\nVersion: 9.9.9\n")
    cluster.add("late", {"PYTHONPATH": str(other.parent)})
    assert fleet.wait() == 0, fleet.output
    cluster.kill("late")
    assert "2 of 2 trainings are done" in fleet.output
    assert re.search(r"unwritable/\S+: Not a directory", fleet.output), fleet.output
    assert re.search(r"it has tensorflow 9\.9\.9, and 2\.\S+ is needed", fleet.output), fleet.output
    assert started_stages(home.check_output("dvc", "repro", "--pull", "train")) == {"environment"}
    results = {path.name: np.load(path / "predictions.npy") for path in (home.root / "data" / "train").iterdir()}
    assert len(results) == 2
    home.check_output("dvc", "repro", "--force", "--single-item", *(f"train@{name}" for name in results))
    for name, predictions in results.items():
        assert np.array_equal(np.load(home.root / "data" / "train" / name / "predictions.npy"), predictions), name
    home.configure({"train.epochs": 2})
    home.check_output("dvc", "repro", "prepare")
    changed = home.check_output(
        "python",
        "-c",
        "from halfstep.params import loading; from halfstep.fleet.unfinished import unfinished_trainings as missing\n"
        "print(len(missing(loading.load().train)))",
    )
    assert changed.strip() == "2"


def test_what_is_killed_goes_on_from_its_checkpoint(home: Checkout, cluster: Cluster, folder: Path) -> None:
    """First the driver, then by Ctrl-C, then the raylet of the node that trains."""
    cluster.add("node2", {"HALFSTEP_CHECKPOINTS": str(folder / "checkpoints")})
    nodes = ("node1", "node2")
    home.configure({"train.variants": ["float32"], "train.epochs": 60, "train.batch_size": 32})
    killed = Fleet(home, cluster)
    wait_for(lambda: list((folder / "checkpoints" / NAME).rglob("[0-9]*.npz")), LIMIT_S, lambda: killed.output)
    killed.process.kill()
    killed.wait()
    wait_for(lambda: not any(map(cluster.trainings, nodes)), 90.0)  # its programs end by themselves

    interrupted = Fleet(home, cluster)
    wait_for(lambda: "resumed from step" in interrupted.output, LIMIT_S, lambda: interrupted.output)
    interrupted.process.send_signal(signal.SIGINT)
    assert interrupted.wait() != 0
    assert "ended what was running; the same command continues it" in interrupted.output
    assert "Traceback" not in interrupted.output
    assert not any(map(cluster.trainings, nodes))

    lost = Fleet(home, cluster)
    wait_for(lambda: "resumed from step" in lost.output, LIMIT_S, lambda: lost.output)
    cluster.kill(next(filter(cluster.trainings, nodes)), only_ray=True)
    assert lost.wait() == 0, lost.output
    assert re.search(r"retry 1 of 2: ", lost.output), lost.output
    assert "(raylet)" not in lost.output, "Ray's own dumps go to a file"
    assert started_stages(home.check_output("dvc", "repro", "--pull", "train")) == {"environment"}
    path = home.root / "data" / "train" / NAME / "predictions.npy"
    predictions = np.load(path)
    home.check_output("dvc", "repro", "--force", "--single-item", f"train@{NAME}")
    assert np.array_equal(np.load(path), predictions)
