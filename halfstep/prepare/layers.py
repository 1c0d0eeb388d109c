"""One process that lists the layers of a task's model, as `float32_layers` names them. Imports TensorFlow."""

from __future__ import annotations

from multiprocessing.connection import Connection

from halfstep.errors import TaskError
from halfstep.params import Variant
from halfstep.prepare.trying import TrialFailure
from halfstep.tasks import own, precision, user_code
from halfstep.tasks.fit_call import FitCall, captured
from halfstep.tasks.images import models
from halfstep.tasks.layers import layer_paths
from halfstep.tasks.ready import from_task
from halfstep.tasks.spec import TaskSpec
from halfstep.tasks.variables import create_variables
from halfstep.tensorflow_import import keras, tf


def serve(
    connection: Connection,
    variant: Variant,
    spec: TaskSpec,
    seed: int,
    shape: tuple[int, int, int] | None,
    classes: int,
) -> None:
    """Sends the layers of the model, or why it cannot be built; `shape` and `classes` are of images."""
    precision.activate(variant)
    keras.utils.set_random_seed(seed)

    def layers() -> dict[str, str]:
        model = models.build(spec.model, shape, classes) if shape is not None else _own_model(spec, variant, seed)
        return {path: type(layer).__name__ for path, layer in layer_paths(model).items()}

    answer = user_code.answer_of(spec.subject, layers)
    connection.send(TrialFailure(answer) if isinstance(answer, str) else answer)


def _own_model(spec: TaskSpec, variant: Variant, seed: int) -> keras.Model:
    if spec.task.script is not None:
        fit = FitCall(
            captured(spec, variant, seed, spec.script_log(seed, "layers-"), keeps=False), spec.train.batch_size
        )
        fit.build()
        return fit.call.model
    task = own.build(spec.task, batch_size=spec.train.batch_size, seed=seed, quiet=True)
    ready = from_task(task, spec.train.model_copy(update={"epochs": 0}), seed, 1)
    if not ready.model.built:  # it has a step of its own
        batch = next(iter(ready.training.from_step(0, 1)))
        with user_code.explained(spec.subject, "cannot be compiled", TaskError):
            ready.model.compile(**task.compile)
        create_variables(ready.model, tf.nest.map_structure(tf.type_spec_from_value, batch))
    return ready.model
