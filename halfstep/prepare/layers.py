"""One process that lists the layers of a task's model, as `float32_layers` names them. Imports TensorFlow."""

from __future__ import annotations

from multiprocessing.connection import Connection

from halfstep.errors import TaskError
from halfstep.prepare.trying import TrialFailure
from halfstep.tasks import own, precision, script, user_code
from halfstep.tasks.fit_call import FitCall, inside
from halfstep.tasks.images import models
from halfstep.tasks.layers import layer_paths
from halfstep.tasks.ready import from_task
from halfstep.tasks.trial import Trial
from halfstep.tasks.variables import create_variables
from halfstep.tensorflow_import import keras, tf


def serve(
    connection: Connection,
    trial: Trial,
    shape: tuple[int, int, int] | None,
    classes: int,
) -> None:
    """Sends the layers of the model, or why it cannot be built; `shape` and `classes` are of images."""

    def layers() -> dict[str, str]:
        precision.activate(trial.variant)
        if trial.task.script is None:
            keras.utils.set_random_seed(trial.seed)
        model = models.build(trial.model, shape, classes) if shape is not None else _own_model(trial)
        return {path: type(layer).__name__ for path, layer in layer_paths(model).items()}

    def answer() -> None:
        answer = user_code.answer_of(trial.subject, layers)
        connection.send(TrialFailure(answer) if isinstance(answer, str) else answer)

    inside(trial, answer, log=trial.script_log("layers-"), keeps=False)


def _own_model(trial: Trial) -> keras.Model:
    if trial.task.script is not None:
        fit = FitCall(script.call(), trial.train.batch_size)
        fit.build()
        return fit.call.model
    task = own.build(trial.task, batch_size=trial.train.batch_size, seed=trial.seed, quiet=True)
    ready = from_task(task, trial.train.model_copy(update={"epochs": 0}), trial.seed, 1)
    if not ready.model.built:  # it has a step of its own
        batch = next(iter(ready.training.from_step(0, 1)))
        with user_code.explained(trial.subject, "cannot be compiled", TaskError):
            ready.model.compile(**task.compile)
        create_variables(ready.model, tf.nest.map_structure(tf.type_spec_from_value, batch))
    return ready.model
