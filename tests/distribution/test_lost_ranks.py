"""Hosts that end, differ or never come: one line, status 75, and the next start gives the same weights."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from mlflow import MlflowClient

from tests.distribution import ranks

pytestmark = pytest.mark.fleet

EPOCHS = 8
PARAMS = {
    "model": {"name": "cnn"},
    "train": {"replicas": 2, "epochs": EPOCHS, "batch_size": 8, "augment": {"flip": True}, "batch_norm": "replica"},
    "variants": {name: {"policy": name} for name in ("float32", "mixed_float16", "mixed_bfloat16")},
}
TRAIN = ["stages.train", "--variant", "float32", "--seed", "0"]


@dataclass(frozen=True)
class Pair:
    """The folders of two hosts, and the folder of checkpoints that they share."""

    folders: tuple[Path, Path]
    checkpoints: Path

    def start(self, **variables: str) -> list[subprocess.Popen[str]]:
        shared = {"HALFSTEP_CHECKPOINTS": str(self.checkpoints), "HALFSTEP_RANKS_TIMEOUT_S": "60"}
        configs = ranks.tf_configs(2)
        return [self.start_one(rank, configs[rank] | shared | variables) for rank in (0, 1)]

    def start_one(self, rank: int, variables: Mapping[str, str]) -> subprocess.Popen[str]:
        return ranks.start(self.folders[rank], TRAIN, variables)

    @property
    def statuses(self) -> list[str]:
        client = MlflowClient(f"sqlite:///{self.folders[0]}/mlflow.db")
        experiments = [found.experiment_id for found in client.search_experiments()]
        return [run.info.status for run in client.search_runs(experiments)]

    @property
    def results(self) -> Path:
        return self.folders[0] / "data/train/float32-0"


def wait_for_epoch(chief: subprocess.Popen[str], epochs: int) -> str:
    """Reads the chief's lines until so many epochs have ended in this session; returns the first line."""
    assert chief.stdout is not None
    lines: list[str] = []
    while sum("epoch" in line and "loss" in line for line in lines) < epochs:
        lines.append(chief.stdout.readline())
        assert lines[-1], chief.communicate()
    return lines[0]


def only_line(errors: str) -> str:
    (line,) = errors.splitlines()
    return line


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory, prepared_template: Path, store_template: Path) -> tuple[Pair, Pair]:
    """Two hosts whose training is interrupted again and again, and two that are left in peace."""
    root = tmp_path_factory.mktemp("lost")

    def pair(name: str) -> Pair:
        one, two = (ranks.create(root / f"{name}-{rank}", prepared_template, store_template, PARAMS) for rank in (0, 1))
        return Pair((one, two), root / f"checkpoints-{name}")

    return pair("disturbed"), pair("undisturbed")


def test_lost_ranks_end_the_others_and_the_next_start_resumes(pairs: tuple[Pair, Pair]) -> None:
    disturbed, undisturbed = pairs
    reference = ranks.ended(undisturbed.start())
    assert [(status, errors) for status, _, errors in reference] == [(0, ""), (0, "")]

    chief, follower = disturbed.start()
    wait_for_epoch(chief, 2)
    os.kill(follower.pid, signal.SIGKILL)
    (status, _, errors), _ = ranks.ended([chief, follower])
    assert status == 75
    assert only_line(errors).startswith("train: rank 1 (127.0.0.1:")
    assert "the next start on all hosts resumes it" in errors
    assert disturbed.statuses == ["FAILED"]

    chief, follower = disturbed.start()
    first = wait_for_epoch(chief, 1)
    assert first.startswith("train float32 seed 0: resumed from step ")
    os.kill(chief.pid, signal.SIGKILL)
    _, (status, _, errors) = ranks.ended([chief, follower])
    assert status == 75
    assert only_line(errors).startswith("train: rank 0 (127.0.0.1:")

    chief, follower = disturbed.start()
    wait_for_epoch(chief, 1)
    os.kill(follower.pid, signal.SIGTERM)
    (status, _, errors), (follower_status, _, _) = ranks.ended([chief, follower])
    assert (status, follower_status) == (75, 128 + signal.SIGTERM)
    assert "another rank was interrupted; the next start on all hosts resumes the training" in only_line(errors)

    found = ranks.ended(disturbed.start())
    assert [(status, errors) for status, _, errors in found] == [(0, ""), (0, "")]
    assert disturbed.statuses == ["FINISHED"]
    np.testing.assert_array_equal(*(np.load(pair.results / "predictions.npy") for pair in pairs))
    histories = [pd.read_csv(pair.results / "history.csv").drop(columns="epoch_time_s") for pair in pairs]
    pd.testing.assert_frame_equal(*histories, check_exact=True)
    assert len(histories[0]) == EPOCHS
    assert not (disturbed.checkpoints / "float32-0").exists()


def test_training_that_was_interrupted_on_one_host_goes_on_on_two(pairs: tuple[Pair, Pair]) -> None:
    pair, undisturbed = pairs
    expected = np.load(undisturbed.results / "predictions.npy")
    process = pair.start_one(0, {"HALFSTEP_CHECKPOINTS": str(pair.checkpoints)})  # two replicas on one host
    wait_for_epoch(process, 1)
    process.terminate()
    ((status, _, errors),) = ranks.ended([process])
    assert status == 128 + signal.SIGTERM
    assert only_line(errors).endswith("interrupted; the next `dvc repro` resumes it")
    (chief, _) = ranks.ended(pair.start())
    assert chief[0] == 0, chief
    assert chief[1].startswith("train float32 seed 0: resumed from step ")
    np.testing.assert_array_equal(np.load(pair.results / "predictions.npy"), expected)


def test_hosts_that_see_different_checkpoints_are_told_so(pairs: tuple[Pair, Pair], tmp_path: Path) -> None:
    pair = pairs[1]
    chief, follower = pair.start()
    wait_for_epoch(chief, 1)
    os.kill(chief.pid, signal.SIGTERM)
    ranks.ended([chief, follower])
    configs = ranks.tf_configs(2)
    folders = (pair.checkpoints, tmp_path)
    found = ranks.ended(
        [pair.start_one(rank, configs[rank] | {"HALFSTEP_CHECKPOINTS": str(folders[rank])}) for rank in (0, 1)]
    )
    for status, _, errors in found:
        assert status == 75
        line = only_line(errors)
        assert "the hosts see different checkpoints (rank 0 step " in line
        assert ", rank 1 step 0)" in line
        assert "set HALFSTEP_CHECKPOINTS to a folder that all of them share" in line


def test_host_with_other_parameters_is_named(
    pairs: tuple[Pair, Pair], tmp_path: Path, prepared_template: Path, store_template: Path
) -> None:
    params = PARAMS | {"train": PARAMS["train"] | {"learning_rate": 0.1}}  # type: ignore[operator]
    other = ranks.create(tmp_path / "other", prepared_template, store_template, params)
    pair = Pair((pairs[0].folders[0], other), tmp_path)
    for status, output, errors in ranks.ended(pair.start()):
        assert (status, output) == (2, "")
        assert only_line(errors).startswith("train: rank 1 differs from rank 0 in parameters, data, code or releases")


def test_rank_that_never_comes_is_named(pairs: tuple[Pair, Pair]) -> None:
    variables = ranks.tf_configs(2)[0] | {"HALFSTEP_RANKS_TIMEOUT_S": "4"}
    ((status, output, errors),) = ranks.ended([pairs[0].start_one(0, variables)])
    assert (status, output) == (75, "")
    line = only_line(errors)
    assert line.startswith("train: rank 1 (127.0.0.1:")
    assert line.endswith(
        "did not start within 4 s; start the same command on each host, or raise HALFSTEP_RANKS_TIMEOUT_S"
    )
