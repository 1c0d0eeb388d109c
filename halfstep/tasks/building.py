"""Builds a task under a variant, ready to train."""

from __future__ import annotations

import functools
import multiprocessing
from dataclasses import replace

from halfstep.errors import TaskError
from halfstep.system import files
from halfstep.tasks import compiling, fit_call, float32_layers, own, user_code
from halfstep.tasks.batches import TrainingData, from_step
from halfstep.tasks.images import task as images
from halfstep.tasks.ready import ReadyTask, from_task
from halfstep.tasks.trial import Trial
from halfstep.tensorflow_import import keras, reset_uids


def ready(trial: Trial, *, trial_batch: int | None = None) -> ReadyTask:
    """A task with a compiled model, of which it is verified that the variant is in force; arguments as of `build`.

    Raises:
        TaskError, ModelError: the task cannot be built or compiled.
        DataError, CorruptFileError: the prepared data are missing or damaged.
        PrecisionError: the variant is not in force, or `train.require_gpu` is true and there is no GPU.
    """
    task = build(trial, trial_batch=trial_batch)
    float32 = compiling.put_in_force(task, trial)
    return replace(compiling.with_input_of(task, trial.variant), float32=float32)


def build(trial: Trial, *, trial_batch: int | None = None) -> ReadyTask:
    """Activates the variant, and builds the model and the data of the task.

    Args:
        trial: what is built.
        trial_batch: train on endless batches of this size, to find out whether they fit into memory: of views of one
            random image, which take no memory, or else of the examples of the first batch, repeated.
    """
    compiling.activate(trial)
    reset_uids()  # so that the layers of a second model in this process have the names of the first one's
    task = _build(trial, trial_batch)
    if isinstance(task.model, keras.Model):
        float32_layers.keep(task.model, trial.variant.float32_layers)
    return task


def _build(trial: Trial, trial_batch: int | None) -> ReadyTask:
    if trial.task.script is None:  # which has its own, and has drawn from them
        keras.utils.set_random_seed(trial.seed)
    if trial.task.uses_data_and_model:
        train = trial.train if trial_batch is None else trial.train.model_copy(update={"batch_size": trial_batch})
        return images.build(replace(trial, train=train), one_image=trial_batch is not None)
    task = _own(trial) if trial.task.script is None else fit_call.build(trial)
    if trial_batch is None:
        return task
    batches = task.training.of_size(trial_batch)
    return replace(task, training=TrainingData(1, functools.partial(from_step, batches), is_indexed=True))


def _own(trial: Trial) -> ReadyTask:
    is_worker = multiprocessing.parent_process() is not None  # one of many
    task = own.build(trial.task, batch_size=trial.train.batch_size, seed=trial.seed, quiet=is_worker)
    digest = trial.prepared_sha256 or files.verify_manifest(trial.directory)
    with user_code.explained(trial.subject, "has data that cannot be read", TaskError):
        return from_task(task, trial.train, trial.seed, trial.info.steps_at(trial.train.batch_size), digest)
