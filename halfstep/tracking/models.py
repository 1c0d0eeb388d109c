"""Logs data sets and models."""

from __future__ import annotations

import functools
import tempfile
import warnings
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mlflow
import numpy as np
from mlflow.entities import DatasetInput, InputTag, LoggedModel, LoggedModelOutput
from mlflow.exceptions import MlflowException
from mlflow.models import Model, ModelSignature
from mlflow.types import Schema, TensorSpec

from halfstep.system import files
from halfstep.tracking.active_run import ActiveRun

if TYPE_CHECKING:
    from halfstep.tensorflow_import import keras

# What is needed to load a model.
_OF_KERAS = ("tensorflow", "keras", "numpy")
_OF_ONNX = ("onnx", "onnxruntime", "numpy")
_OF_DATABASE = "https://sqlalche.me/"  # ends each error of the database behind a server


def log_dataset(run: ActiveRun, images: np.ndarray, labels: np.ndarray, *, source: str, sha256: str) -> None:
    """Logs the training images as the run's data set, with the sha256 of their manifest."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # MLflow finds two types that match a local path
        data = mlflow.data.from_numpy(  # type: ignore[attr-defined]  # MLflow adds it at import
            images, source=str(files.PREPARED), targets=labels, name=source, digest=sha256[:12]
        )
    entity = DatasetInput(dataset=data._to_mlflow_entity(), tags=[InputTag("mlflow.data.context", "train")])

    def log() -> None:
        try:
            run.client.log_inputs(run.run_id, datasets=[entity])
        except MlflowException as error:
            if _OF_DATABASE not in str(error):
                raise
            run.client.log_inputs(run.run_id, datasets=[entity])  # another training has just inserted it: found now

    run.attempt(log)


def log_model(run: ActiveRun, model: keras.Model) -> None:
    """Logs the model in MLflow's own format, with its signature and pinned requirements. Imports TensorFlow."""
    import mlflow.tensorflow

    save = functools.partial(mlflow.tensorflow.save_model, model, signature=_signature(model))
    _log(run, lambda path, entry: save(path, mlflow_model=entry, pip_requirements=_requirements(_OF_KERAS)))


def log_onnx(run: ActiveRun, file: Path) -> None:
    """Logs an ONNX file in MLflow's own format, which loads it with ONNX Runtime."""
    import mlflow.onnx
    import onnx

    model = onnx.load(file)
    needed = _requirements(_OF_ONNX)
    _log(run, lambda path, entry: mlflow.onnx.save_model(model, path, mlflow_model=entry, pip_requirements=needed))


def _log(run: ActiveRun, save: Callable[[str, Model], Any]) -> None:
    """Logs the model that `save` writes to a path. Does not use MLflow's active run, which belongs to a thread."""
    created = functools.cache(lambda: _created(run.client, run.run_id))  # once, also if a later call is repeated

    def log() -> None:
        logged = created()
        entry = Model(artifact_path=logged.artifact_location, run_id=run.run_id, model_id=logged.model_id)
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            path = str(Path(folder) / "model")
            save(path, entry)
            run.client.log_model_artifacts(logged.model_id, path)
        run.client.finalize_logged_model(logged.model_id, "READY")
        if _logged_model(run.client, run.run_id) != logged.model_id:  # the answer to an earlier try may be lost
            run.client.log_outputs(run.run_id, [LoggedModelOutput(logged.model_id, 0)])

    run.attempt(log)


def _created(client: mlflow.MlflowClient, run_id: str) -> LoggedModel:
    source = client.get_run(run_id)
    return client.create_logged_model(source.info.experiment_id, "model", run_id, params=source.data.params)


def _signature(model: keras.Model) -> ModelSignature:
    """Types and shapes of the inputs and outputs, such as pixels and probabilities.

    A single input has no name, because MLflow would look for an input layer with that name.
    """
    return ModelSignature(inputs=_schema(model.inputs), outputs=_schema(model.outputs))


def _schema(tensors: Sequence[keras.KerasTensor]) -> Schema:
    return Schema(
        [
            TensorSpec(
                np.dtype("float32" if tensor.dtype == "bfloat16" else tensor.dtype),  # NumPy has no bfloat16
                tuple(-1 if size is None else size for size in tensor.shape),
                tensor.name if len(tensors) > 1 else None,
            )
            for tensor in tensors
        ]
    )


def _requirements(packages: Sequence[str]) -> list[str]:
    return [f"{name}=={metadata.version(name)}" for name in packages]


def _logged_model(client: mlflow.MlflowClient, run_id: str) -> str | None:
    """Identifier of the model that the training logged; None if the run was logged from files."""
    outputs = client.get_run(run_id).outputs
    logged = [client.get_logged_model(output.model_id) for output in outputs.model_outputs] if outputs else []
    return next((str(model.model_id) for model in logged if str(model.status) == "READY"), None)
