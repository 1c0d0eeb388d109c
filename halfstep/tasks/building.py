"""Builds a task under a variant, ready to train."""

from __future__ import annotations

import functools
import multiprocessing
from dataclasses import replace

from halfstep.errors import TaskError
from halfstep.params import Variant
from halfstep.results.task import TASK_INFO, TaskInfo
from halfstep.system import files
from halfstep.tasks import compiling, fit_call, float32_layers, own, user_code
from halfstep.tasks.batches import TrainingData, from_step
from halfstep.tasks.images import task as images
from halfstep.tasks.ready import ReadyTask, from_task
from halfstep.tasks.spec import TaskSpec
from halfstep.tensorflow_import import keras, reset_uids


def ready(spec: TaskSpec, variant: Variant, seed: int, *, trial_batch: int | None = None) -> ReadyTask:
    """A task with a compiled model, of which it is verified that the variant is in force; arguments as of `build`.

    Raises:
        TaskError, ModelError: the task cannot be built or compiled.
        DataError, CorruptFileError: the prepared data are missing or damaged.
        PrecisionError: the variant is not in force, or `train.require_gpu` is true and there is no GPU.
    """
    task = build(spec, variant, seed, trial_batch=trial_batch)
    float32 = compiling.put_in_force(task, spec, variant)
    return replace(compiling.with_input_of(task, variant), float32=float32)


def build(spec: TaskSpec, variant: Variant, seed: int, *, trial_batch: int | None = None) -> ReadyTask:
    """Activates a variant, and builds the model and the data of a task.

    Args:
        spec: the task.
        variant: an entry of `variants`.
        seed: seed of the initial weights, which are the same under every policy, and of the order of the examples.
        trial_batch: train on endless batches of this size, to find out whether they fit into memory: of views of one
            random image, which take no memory, or else of the examples of the first batch, repeated.
    """
    compiling.activate(spec, variant)
    reset_uids()  # so that the layers of a second model in this process have the names of the first one's
    task = _build(spec, variant, seed, trial_batch)
    if isinstance(task.model, keras.Model):
        float32_layers.keep(task.model, variant.float32_layers)
    return task


def _build(spec: TaskSpec, variant: Variant, seed: int, trial_batch: int | None) -> ReadyTask:
    keras.utils.set_random_seed(seed)
    if spec.task.uses_data_and_model:
        train = spec.train if trial_batch is None else spec.train.model_copy(update={"batch_size": trial_batch})
        return images.build(replace(spec, train=train), seed, one_image=trial_batch is not None)
    task = _own(spec, seed) if spec.task.script is None else fit_call.build(spec, variant, seed)
    if trial_batch is None:
        return task
    batches = task.training.of_size(trial_batch)
    return replace(task, training=TrainingData(1, functools.partial(from_step, batches), is_indexed=True))


def _own(spec: TaskSpec, seed: int) -> ReadyTask:
    is_worker = multiprocessing.parent_process() is not None  # one of many
    task = own.build(spec.task, batch_size=spec.train.batch_size, seed=seed, quiet=is_worker)
    digest = spec.prepared_sha256 or files.verify_manifest(spec.directory)
    info = TaskInfo.read(spec.directory / TASK_INFO.name)
    with user_code.explained(spec.subject, "has data that cannot be read", TaskError):
        return from_task(task, spec.train, seed, info.steps_at(spec.train.batch_size), digest)
