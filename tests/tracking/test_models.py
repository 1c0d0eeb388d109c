"""Models and data sets in a real store."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from mlflow import MlflowClient

from halfstep.params.schema import Params, TrackingParams
from halfstep.tracking import run_logging
from halfstep.tracking.active_run import ActiveRun
from halfstep.tracking.models import log_dataset, log_model, log_onnx
from halfstep.tracking.tracker import Tracker
from halfstep.words.formats import FORMATS
from tests.faults.servers import mlflow_server

PARAMS = Params()


@pytest.fixture
def client(project: Path) -> MlflowClient:
    return MlflowClient(f"sqlite:///{project}/mlflow.db")


def test_model_is_logged_with_its_inputs_and_outputs(client: MlflowClient) -> None:
    import keras
    import mlflow

    words, age = keras.Input((3,), dtype="int32", name="words"), keras.Input((1,), dtype="float32", name="age")
    joined = keras.layers.Concatenate()([keras.layers.Rescaling(0.5)(words), age])
    model = keras.Model([words, age], keras.layers.Dense(2, dtype="mixed_bfloat16")(joined))
    with Tracker(PARAMS.tracking).run(run_logging.training("mixed_bfloat16", 0), PARAMS) as run:
        log_model(run, model)
    outputs = client.get_run(run.run_id).outputs
    assert outputs is not None
    (logged,) = outputs.model_outputs
    loaded = mlflow.pyfunc.load_model(f"models:/{logged.model_id}")
    assert loaded.metadata.get_input_schema().input_names() == ["words", "age"]
    inputs = {"words": np.arange(6, dtype=np.int32).reshape(2, 3), "age": np.ones((2, 1), np.float32)}
    expected = np.asarray(model(inputs), np.float32)
    assert np.asarray(loaded.predict(inputs), np.float32) == pytest.approx(expected, rel=1e-2)


def test_onnx_file_is_logged_as_a_model_that_predicts(client: MlflowClient, tmp_path: Path) -> None:
    import keras
    import mlflow

    if FORMATS["onnx"].missing:
        pytest.skip("ONNX Runtime is not installed")
    inputs = keras.Input((3,), name="x0")
    model = keras.Model(inputs, keras.layers.Dense(2)(inputs))
    x = np.random.default_rng(0).random((2, 3), np.float32)
    expected = np.asarray(model(x))
    model.export(tmp_path / "model.onnx", format="onnx", verbose=False)
    with Tracker(PARAMS.tracking).run(run_logging.serving("float32", "onnx"), PARAMS) as run:
        log_onnx(run, tmp_path / "model.onnx")
    outputs = client.get_run(run.run_id).outputs
    assert outputs is not None
    (logged,) = outputs.model_outputs
    (found,) = mlflow.pyfunc.load_model(f"models:/{logged.model_id}").predict(x).values()
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_trainings_that_start_at_once_all_have_their_data_set(project: Path) -> None:
    together = threading.Barrier(2)

    def log(run: ActiveRun, sha256: str) -> None:
        together.wait()
        log_dataset(run, np.zeros((4, 2)), np.zeros(4), source="digits", sha256=sha256)

    with mlflow_server(project) as server:
        tracker = Tracker(TrackingParams(uri=server.uri))
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
            assert all(run_inputs and len(run_inputs.dataset_inputs) == 1 for run_inputs in inputs)
