"""One process that builds the model under one variant and audits it. Imports TensorFlow; the command does not."""

from __future__ import annotations

from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from halfstep import precision
from halfstep.errors import TaskError
from halfstep.params import Variant
from halfstep.profile.audit import audit
from halfstep.results.audit import ModelAudit
from halfstep.tasks import float32_layers, own, user_code
from halfstep.tasks.fit_call import FitCall, captured
from halfstep.tasks.images import models
from halfstep.tasks.ready import from_task
from halfstep.tasks.spec import TaskSpec
from halfstep.tasks.variables import create_variables
from halfstep.tensorflow_import import keras, reset_uids, tf

ImageShape = tuple[int, int, int]


def serve(
    connection: Connection, variant: Variant, spec: TaskSpec, seed: int, shape: ImageShape | None, classes: int
) -> None:
    """What the process runs: sends what `look` returns, or the message of an error."""
    connection.send(user_code.answer_of(spec.subject, lambda: look(spec, variant, seed, shape, classes)))


def look(spec: TaskSpec, variant: Variant, seed: int, shape: ImageShape | None, classes: int) -> ModelAudit:
    """Builds the model of a task, without its prepared data, and looks at it.

    Args:
        spec: the task.
        variant: an entry of `variants`.
        seed: of the weights and of the task's data.
        shape: of an image; None for other tasks.
        classes: of images.

    Raises:
        TaskError, ModelError: the model cannot be built.
        PrecisionError: `float32_layers` names a layer that is not there.
    """
    precision.activate(variant)
    keras.utils.set_random_seed(seed)
    reset_uids()
    model, inputs = _built(spec, variant, seed, shape, classes)
    return audit(model, inputs, float32_layers.kept_paths(model, variant.float32_layers))


def _built(
    spec: TaskSpec, variant: Variant, seed: int, shape: ImageShape | None, classes: int
) -> tuple[keras.Model, Any]:
    """The model, and inputs for it."""
    if shape is not None:
        return models.build(spec.model, shape, classes), np.zeros((1, *shape), np.uint8)
    if spec.task.script is not None:
        log = spec.script_log(seed, "audit-")
        fit = FitCall(captured(spec, variant, seed, log, keeps=False), spec.train.batch_size)
        fit.build()
        return fit.call.model, fit.first_batch[0] if isinstance(fit.first_batch, tuple) else fit.first_batch
    task = own.build(spec.task, batch_size=spec.train.batch_size, seed=seed, quiet=True)
    ready = from_task(task, spec.train.model_copy(update={"epochs": 0}), seed, 1)
    batch = next(iter(ready.training.from_step(0, 1)))
    if not ready.model.built:  # it has a step of its own
        with user_code.explained(spec.subject, "cannot be compiled", TaskError):
            ready.model.compile(**task.compile)
        create_variables(ready.model, tf.nest.map_structure(tf.type_spec_from_value, batch))
    return ready.model, keras.utils.unpack_x_y_sample_weight(batch)[0]
