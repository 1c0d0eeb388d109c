"""What only a training itself can log, from memory: the data set that went in and the model that came out.

Only `train` imports this: MLflow's flavour for Keras imports TensorFlow.
"""

from __future__ import annotations

import warnings
from importlib import metadata
from typing import TYPE_CHECKING

import mlflow
import numpy as np
from mlflow.entities import DatasetInput, InputTag
from mlflow.models import ModelSignature
from mlflow.types import Schema, TensorSpec

from stages import files
from stages.tracking.live import LiveRun

if TYPE_CHECKING:
    import keras

    from stages.dataset import Prepared

PINNED = ("tensorflow", "keras", "numpy")  # what loading the model takes


def log_dataset(run: LiveRun, prepared: Prepared, source: str) -> None:
    """Logs the prepared images as the run's data set, with the digest of their manifest."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its two names for one kind of source
        data = mlflow.data.from_numpy(  # type: ignore[attr-defined]  # made by MLflow at import
            prepared.train.images,
            source=str(files.PREPARED),
            targets=prepared.train.labels,
            name=source,
            digest=prepared.sha256[:12],
        )
    entity = DatasetInput(dataset=data._to_mlflow_entity(), tags=[InputTag("mlflow.data.context", "train")])
    run.attempt(lambda: mlflow.MlflowClient().log_inputs(run.run_id, datasets=[entity]))


def log_model(run: LiveRun, model: keras.Model, prepared: Prepared) -> None:
    """Logs the model in MLflow's own format, with its signature and the releases that it needs."""
    # Without names: by a name MLflow would look for an input layer that is called so.
    signature = ModelSignature(
        inputs=Schema([TensorSpec(np.dtype(np.uint8), (-1, *prepared.image_shape))]),
        outputs=Schema([TensorSpec(np.dtype(np.float32), (-1, len(prepared.classes)))]),
    )

    def log() -> None:
        with warnings.catch_warnings(), mlflow.start_run(run_id=run.run_id):
            warnings.simplefilter("ignore")
            mlflow.tensorflow.log_model(
                model,
                name="model",
                signature=signature,
                pip_requirements=[f"{name}=={metadata.version(name)}" for name in PINNED],
            )

    run.attempt(log)
