"""Versions and the alias in the model registry of a real store."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from mlflow import MlflowClient
from mlflow.entities import LoggedModelOutput

from stages import files
from stages.errors import TrackingError
from stages.params import Params, TrackingParams
from stages.tracking import run_logging
from stages.tracking.active_run import ActiveRun
from stages.tracking.models import ChampionModel, log_dataset, register_champion
from stages.tracking.tracker import Tracker
from tests.faults.servers import mlflow_server

PARAMS = Params()


@pytest.fixture
def client(project: Path) -> MlflowClient:
    return MlflowClient(f"sqlite:///{project}/mlflow.db")


def trained(client: MlflowClient, seed: int, *, logged: bool = True) -> ChampionModel:
    """A training in the store; unless `logged`, its run has no model, as if it had been logged from files."""
    directory = files.train_dir("half", seed)
    directory.mkdir(parents=True)
    (directory / "model.keras").write_bytes(b"the model of seed %d" % seed)
    files.write_manifest(directory)
    with Tracker(PARAMS.tracking).run(run_logging.training("mixed_bfloat16", seed), PARAMS) as run:
        if logged:
            experiment_id = client.get_run(run.run_id).info.experiment_id
            model = client.create_logged_model(experiment_id, "model", run.run_id)
            client.finalize_logged_model(model.model_id, "READY")
            client.log_outputs(run.run_id, [LoggedModelOutput(model.model_id, 0)])
    return ChampionModel("half", seed, run.run_id, directory, "Use half.")


def test_champion_gets_the_alias_and_one_version_per_training(client: MlflowClient) -> None:
    first, second = trained(client, 0), trained(client, 1)
    assert register_champion(client, "classifier", first) == "1"
    assert register_champion(client, "classifier", first) == "1"
    assert register_champion(client, "classifier", second) == "2"
    champion = client.get_model_version_by_alias("classifier", "champion")
    assert (str(champion.version), champion.run_id) == ("2", second.run_id)
    assert champion.tags["variant"] == "half"
    assert champion.description == "Use half."
    assert register_champion(client, "classifier", first) == "1"  # the alias moves back to the first version
    assert str(client.get_model_version_by_alias("classifier", "champion").version) == "1"
    assert len(client.search_model_versions("name = 'classifier'")) == 2


def test_invalid_name_is_reported_in_one_line(client: MlflowClient) -> None:
    with pytest.raises(TrackingError, match=r"compare\.register is 'a/b'") as caught:
        register_champion(client, "a/b", trained(client, 0))
    assert "\n" not in str(caught.value)


def test_missing_model_is_logged_from_its_file(client: MlflowClient) -> None:
    import keras
    import mlflow
    import numpy as np

    champion = trained(client, 0, logged=False)
    model = keras.Sequential([keras.Input((4, 4, 1), dtype="uint8"), keras.layers.Flatten(), keras.layers.Dense(2)])
    model.save(champion.directory / "model.keras")
    files.write_manifest(champion.directory)
    ended = client.get_run(champion.run_id).info.end_time
    register_champion(client, "classifier", champion)
    loaded = mlflow.pyfunc.load_model("models:/classifier@champion")
    pixels = np.arange(32, dtype=np.uint8).reshape(2, 4, 4, 1)
    assert loaded.predict(pixels) == pytest.approx(np.asarray(model(pixels)), rel=1e-5)
    assert client.get_run(champion.run_id).info.end_time == ended


def test_model_of_another_task_is_logged_with_its_own_inputs_and_outputs(client: MlflowClient) -> None:
    import keras
    import mlflow
    import numpy as np

    champion = trained(client, 0, logged=False)
    words, age = keras.Input((3,), dtype="int32", name="words"), keras.Input((1,), dtype="float32", name="age")
    joined = keras.layers.Concatenate()([keras.layers.Rescaling(0.5)(words), age])
    model = keras.Model([words, age], keras.layers.Dense(2, dtype="mixed_bfloat16")(joined))
    model.save(champion.directory / "model.keras")
    files.write_manifest(champion.directory)
    register_champion(client, "texts", champion)
    loaded = mlflow.pyfunc.load_model("models:/texts@champion")
    assert loaded.metadata.get_input_schema().input_names() == ["words", "age"]
    inputs = {"words": np.arange(6, dtype=np.int32).reshape(2, 3), "age": np.ones((2, 1), np.float32)}
    expected = np.asarray(model(inputs), np.float32)
    assert np.asarray(loaded.predict(inputs), np.float32) == pytest.approx(expected, rel=1e-2)


def test_trainings_that_start_at_once_all_have_their_data_set(project: Path) -> None:
    together = threading.Barrier(2)

    def log(run: ActiveRun, sha256: str) -> None:
        together.wait()
        log_dataset(run, np.zeros((4, 2)), np.zeros(4), source="digits", sha256=sha256)

    with mlflow_server(project) as server:
        tracker = Tracker(TrackingParams(uri=server.uri), waits=True)
        for number in range(10):
            runs = [
                ActiveRun(tracker.client, tracker.client.create_run(tracker._experiment_id).info.run_id)
                for _ in range(2)
            ]
            trainings = [threading.Thread(target=log, args=(run, f"{number:012}")) for run in runs]
            for training in trainings:
                training.start()
            for training in trainings:
                training.join()
            assert not any(run.is_incomplete for run in runs)
            inputs = [tracker.client.get_run(run.run_id).inputs for run in runs]
            assert all(found and len(found.dataset_inputs) == 1 for found in inputs)
