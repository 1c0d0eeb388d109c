"""MLflow's model registry: the winner's model as a version of a registered model, with the alias `champion`."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import mlflow
import numpy as np
from mlflow.exceptions import MlflowException
from mlflow.models import ModelSignature
from mlflow.protos.databricks_pb2 import RESOURCE_ALREADY_EXISTS, ErrorCode
from mlflow.types import Schema, TensorSpec

from stages import files
from stages.errors import TrackingError
from stages.tracking.live import RESULT_TAG, first_line
from stages.tracking.objects import PINNED

ALIAS = "champion"


@dataclass(frozen=True)
class Winner:
    """The training whose model is registered: its run, its folder, and what the version says of it."""

    variant: str
    seed: int
    run_id: str
    directory: Path
    description: str


def register_champion(name: str, winner: Winner) -> str:
    """Registers a model under `name` and gives it the alias; the same training's model is not registered twice.

    Returns:
        The version that carries the alias now.

    Raises:
        TrackingError: the store has no registry, or refuses the name.
        CorruptFileError: the model's file is not what was written.
    """
    client = mlflow.MlflowClient()
    digest = files.check_manifest(winner.directory)
    try:
        _ensure_registered_model(client, name)
        version = _version_of(client, name, digest) or _new_version(client, name, winner, digest)
        client.set_registered_model_alias(name, ALIAS, version)
    except MlflowException as error:
        raise TrackingError(
            f"compare.register is '{name}', which the model registry refuses ({first_line(error)}); "
            "choose another name, or check that the tracking store has a registry"
        ) from error
    return version


def _ensure_registered_model(client: mlflow.MlflowClient, name: str) -> None:
    try:
        client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != ErrorCode.Name(RESOURCE_ALREADY_EXISTS):
            raise


def _version_of(client: mlflow.MlflowClient, name: str, digest: str) -> str | None:
    quoted = name.replace("'", "\\'")
    found = [row for row in client.search_model_versions(f"name = '{quoted}'") if row.tags.get(RESULT_TAG) == digest]
    return str(max(found, key=lambda row: int(row.version)).version) if found else None


def _new_version(client: mlflow.MlflowClient, name: str, winner: Winner, digest: str) -> str:
    model_id = _logged_model(client, winner.run_id) or _log_model(client, winner)
    version = client.create_model_version(
        name,
        source=f"models:/{model_id}",
        run_id=winner.run_id,
        tags={RESULT_TAG: digest, "variant": winner.variant, "seed": str(winner.seed)},
        description=winner.description,
        model_id=model_id,
    )
    return str(version.version)


def _logged_model(client: mlflow.MlflowClient, run_id: str) -> str | None:
    """The model that the training itself has logged; None for a run that was made from files."""
    outputs = client.get_run(run_id).outputs
    logged = [client.get_logged_model(output.model_id) for output in outputs.model_outputs] if outputs else []
    return next((str(model.model_id) for model in logged if str(model.status) == "READY"), None)


def _log_model(client: mlflow.MlflowClient, winner: Winner) -> str:
    """Logs the model's file in MLflow's own format, as what that training has made. Imports TensorFlow."""
    import mlflow.tensorflow
    from keras import saving

    model = saving.load_model(winner.directory / "model.keras", compile=False, safe_mode=True)
    experiment_id = client.get_run(winner.run_id).info.experiment_id
    logged = client.create_logged_model(experiment_id, "model", winner.run_id)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        mlflow.tensorflow.save_model(
            model,
            str(path),
            # Without names: by a name it would look for an input layer that is called so.
            signature=ModelSignature(
                inputs=Schema([TensorSpec(np.dtype(np.uint8), (-1, *model.input_shape[1:]))]),
                outputs=Schema([TensorSpec(np.dtype(np.float32), (-1, *model.output_shape[1:]))]),
            ),
            pip_requirements=[f"{package}=={metadata.version(package)}" for package in PINNED],
        )
        client.log_model_artifacts(logged.model_id, str(path))
    client.finalize_logged_model(logged.model_id, "READY")
    return str(logged.model_id)
