"""Logs data sets and models, and registers the best adopted model under the alias `champion`."""

from __future__ import annotations

import functools
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import mlflow
import numpy as np
from mlflow.entities import DatasetInput, InputTag, LoggedModel, LoggedModelOutput
from mlflow.exceptions import MlflowException
from mlflow.models import Model, ModelSignature
from mlflow.protos.databricks_pb2 import RESOURCE_ALREADY_EXISTS, ErrorCode
from mlflow.types import Schema, TensorSpec

from stages import files
from stages.errors import HalfstepError, TrackingError, printable
from stages.results.training import MODEL
from stages.tracking.active_run import RESULT_TAG, ActiveRun, first_line

if TYPE_CHECKING:
    from stages.tensorflow_import import keras

PINNED = ("tensorflow", "keras", "numpy")  # needed to load the model
ALIAS = "champion"
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

    created = functools.cache(lambda: _created(run.client, run.run_id))  # once, also if a later call is repeated

    def log() -> None:
        model_id = _upload(run.client, run.run_id, model, created())
        if _logged_model(run.client, run.run_id) != model_id:  # the answer to an earlier try may have been lost
            run.client.log_outputs(run.run_id, [LoggedModelOutput(model_id, 0)])

    run.attempt(log)


def _created(client: mlflow.MlflowClient, run_id: str) -> LoggedModel:
    source = client.get_run(run_id)
    return client.create_logged_model(source.info.experiment_id, "model", run_id, params=source.data.params)


def _upload(client: mlflow.MlflowClient, run_id: str, model: keras.Model, logged: LoggedModel) -> str:
    """Logs a model, and returns its identifier. Does not use MLflow's active run, which belongs to a thread."""
    import mlflow.tensorflow

    entry = Model(artifact_path=logged.artifact_location, run_id=run_id, model_id=logged.model_id)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path, requirements = str(Path(folder) / "model"), _requirements()
        mlflow.tensorflow.save_model(
            model, path, mlflow_model=entry, signature=_signature(model), pip_requirements=requirements
        )
        client.log_model_artifacts(logged.model_id, path)
    client.finalize_logged_model(logged.model_id, "READY")
    return str(logged.model_id)


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


def _requirements() -> list[str]:
    return [f"{name}=={metadata.version(name)}" for name in PINNED]


@dataclass(frozen=True)
class ChampionModel:
    """The training whose model is registered, with its run and folder, and the description of the model version."""

    variant: str
    seed: int
    run_id: str
    directory: Path
    description: str


def register_champion(client: mlflow.MlflowClient, name: str, champion: ChampionModel) -> str:
    """Registers a model under `name` and moves the alias to it. A model that is already registered gets no new version.

    Returns:
        The version that now has the alias.

    Raises:
        TrackingError: the store has no registry, or rejects the name.
        DataError: the training's folder has no manifest.
        CorruptFileError: a file of the training is damaged.
    """
    digest = files.verify_manifest(champion.directory)
    try:
        _ensure_registered_model(client, name)
        version = _version_of(client, name, champion.run_id, digest) or _new_version(client, name, champion, digest)
        client.set_registered_model_alias(name, ALIAS, version)
    except HalfstepError:
        raise
    except Exception as error:  # MLflow does not wrap the exceptions of the libraries that it uses
        raise TrackingError(
            f"compare.register is '{name}', and the model registry does not accept it ({first_line(error)}); choose "
            "another name, or check that the tracking store has a registry and responds, and run `dvc repro` again"
        ) from error
    return printable(version)


def _ensure_registered_model(client: mlflow.MlflowClient, name: str) -> None:
    try:
        client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != ErrorCode.Name(RESOURCE_ALREADY_EXISTS):
            raise


def _version_of(client: mlflow.MlflowClient, name: str, run_id: str, digest: str) -> str | None:
    """The newest version of the model that this run logged: the artifacts of an earlier run may have been deleted."""
    quoted = name.replace("'", "\\'")
    versions = client.search_model_versions(f"name = '{quoted}'")
    found = [row for row in versions if row.run_id == run_id and row.tags.get(RESULT_TAG) == digest]
    return str(max(found, key=lambda row: int(row.version)).version) if found else None


def _new_version(client: mlflow.MlflowClient, name: str, champion: ChampionModel, digest: str) -> str:
    model_id = _logged_model(client, champion.run_id) or _log_model(client, champion)
    version = client.create_model_version(
        name,
        source=f"models:/{model_id}",
        run_id=champion.run_id,
        tags={RESULT_TAG: digest, "variant": champion.variant, "seed": str(champion.seed)},
        description=champion.description,
        model_id=model_id,
    )
    return str(version.version)


def _logged_model(client: mlflow.MlflowClient, run_id: str) -> str | None:
    """Identifier of the model that the training logged; None if the run was logged from files."""
    outputs = client.get_run(run_id).outputs
    logged = [client.get_logged_model(output.model_id) for output in outputs.model_outputs] if outputs else []
    return next((str(model.model_id) for model in logged if str(model.status) == "READY"), None)


def _log_model(client: mlflow.MlflowClient, champion: ChampionModel) -> str:
    """Logs the model's file in MLflow's own format with the training's run. Imports TensorFlow."""
    from stages.tensorflow_import import keras

    model = keras.saving.load_model(champion.directory / MODEL, compile=False, safe_mode=True)
    return _upload(client, champion.run_id, model, _created(client, champion.run_id))
