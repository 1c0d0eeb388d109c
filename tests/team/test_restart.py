"""Two users train at once while the tracking server is killed and started again: in the end it has every epoch."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run

from tests.pipeline.conftest import Checkout, child_environment
from tests.team.conftest import Team, wait_until

pytestmark = pytest.mark.fleet
EPOCHS = 40
EXPERIMENT = "restart"
SEEDS = {"ann": 0, "bob": 1}
TRIES = 4
PARAMETERS = {
    "train.variants": ["float32"],
    "train.seeds": list(SEEDS.values()),
    "train.epochs": EPOCHS,
    "train.batch_size": 256,
    "tracking.experiment": EXPERIMENT,
}

# What `compare` does at its beginning, of one training.
MISSING = """
import sys
from halfstep.params.loading import load
from halfstep.tracking import backfill
from halfstep.tracking.tracker import Tracker

backfill.training(Tracker(load().tracking), load(), "float32", int(sys.argv[1]))
"""


def test_no_epoch_is_lost_while_the_server_restarts(
    team: Team, pristine: Checkout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in team.variables("admin").items():
        monkeypatch.setenv(name, value)
    client = MlflowClient(team.uri)
    checkouts = prepared(team, pristine, tmp_path)
    trainings = {user: training(checkouts[user], SEEDS[user], team.variables(user)) for user in SEEDS}
    wait_until(lambda: all(epochs(client, run) >= 3 for run in two(client)), "no epochs")

    team.kill()
    team.kill()
    time.sleep(1)
    team.start()
    errors = {user: process.communicate(timeout=120)[1] for user, process in trainings.items()}

    for user, seed in SEEDS.items():
        assert trainings[user].returncode == 0, errors[user]
        first, *others = [line for line in errors[user].splitlines() if line.startswith("MLflow: ")]
        assert first.startswith("MLflow: the store does not answer (")
        assert [line.startswith("MLflow: logging stopped (") for line in others] in ([], [True]), others
        command, variables = ("python", "-c", MISSING, str(seed)), team.variables(user)
        tries = [checkouts[user].run(*command, **variables)]
        while tries[-1].returncode and len(tries) < TRIES:  # the server's first answers may take too long
            tries.append(checkouts[user].run(*command, **variables))
        assert tries[-1].returncode == 0, tries[-1].stderr
    for run in two(client):
        assert (run.info.status, "result.sha256" in run.data.tags) == ("FINISHED", True)
        assert {"history.csv", "metrics.json"} <= {entry.path for entry in client.list_artifacts(run.info.run_id)}
        for name in ("loss", "accuracy", "val_loss", "val_accuracy", "learning_rate", "epoch_time_s"):
            history = client.get_metric_history(run.info.run_id, name)
            assert sorted(metric.step for metric in history) == list(range(EPOCHS)), name


def prepared(team: Team, pristine: Checkout, folder: Path) -> dict[str, Checkout]:
    """A checkout for each user, with prepared data. One makes the experiment, and the other may log to it, too."""
    mine = pristine.copy(folder / "ann")
    mine.configure(PARAMETERS)
    for module in ("environment", "prepare"):
        done = mine.stage(module, **team.variables("ann"))
        assert done.returncode == 0, done.stderr
    team.allow("bob", EXPERIMENT)
    return {"ann": mine, "bob": mine.copy(folder / "bob")}


def training(checkout: Checkout, seed: int, variables: dict[str, str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "stages.train", "--variant", "float32", "--seed", str(seed)]
    environment = child_environment(checkout.root) | variables
    return subprocess.Popen(
        command, cwd=checkout.root, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


def two(client: MlflowClient) -> list[Run]:
    """The runs of both trainings by seed, when they have started."""

    def found() -> list[Run]:
        experiment = client.get_experiment_by_name(EXPERIMENT)
        assert experiment is not None
        return list(
            client.search_runs(
                [experiment.experiment_id], "tags.stage = 'train' and status != 'KILLED'", order_by=["tags.seed"]
            )
        )

    wait_until(lambda: len(found()) == len(SEEDS), "a run is missing, or there is one too many")
    return found()


def epochs(client: MlflowClient, run: Run) -> int:
    return len(client.get_metric_history(run.info.run_id, "loss"))
