"""Builds a task under a variant, ready to train."""

from __future__ import annotations

import multiprocessing
from dataclasses import replace

from stages import files, precision
from stages.errors import TaskError
from stages.params import Variant
from stages.results.task import TASK_INFO, TaskInfo
from stages.tasks import compiling, fit_call, float32_layers, own, user_code
from stages.tasks.images import task as images
from stages.tasks.ready import ReadyTask, from_task
from stages.tasks.spec import TaskSpec
from stages.tensorflow_import import keras, reset_uids


def ready(spec: TaskSpec, variant: Variant, seed: int, *, one_image: bool = False) -> ReadyTask:
    """A task with a compiled model, of which it is verified that the variant is in force; arguments as of `build`.

    Raises:
        TaskError, ModelError: the task cannot be built or compiled.
        DataError, CorruptFileError: the prepared data are missing or damaged.
        PrecisionError: the variant is not in force, or `train.require_gpu` is true and there is no GPU.
    """
    found = build(spec, variant, seed, one_image=one_image)
    float32 = compiling.put_in_force(found, spec, variant)
    return replace(compiling.with_input_of(found, variant), float32=float32)


def build(spec: TaskSpec, variant: Variant, seed: int, *, one_image: bool = False) -> ReadyTask:
    """Activates a variant, and builds the model and the data of a task.

    Args:
        spec: the task.
        variant: an entry of `variants`.
        seed: seed of the initial weights, which are the same under every policy, and of the order of the examples.
        one_image: for `images`, use views of one random image, which take no memory, instead of the prepared images.
    """
    precision.activate(variant, require_gpu=spec.train.require_gpu)
    reset_uids()  # so that the layers of a second model in this process have the names of the first one's
    found = _build(spec, variant, seed, one_image=one_image)
    if isinstance(found.model, keras.Model):
        float32_layers.keep(found.model, variant.float32_layers)
    return found


def _build(spec: TaskSpec, variant: Variant, seed: int, *, one_image: bool) -> ReadyTask:
    keras.utils.set_random_seed(seed)
    if spec.task.script is not None:
        return fit_call.build(spec, variant, seed)
    if not spec.is_images:
        return _own(spec, seed)
    return images.build(spec, seed, one_image=one_image)


def _own(spec: TaskSpec, seed: int) -> ReadyTask:
    is_worker = multiprocessing.parent_process() is not None  # one of many
    task = own.build(spec.task, batch_size=spec.train.batch_size, seed=seed, quiet=is_worker)
    digest = spec.prepared_sha256 or files.verify_manifest(spec.directory)
    info = TaskInfo.read(spec.directory / TASK_INFO.name)
    with user_code.explained(spec.subject, "has data that cannot be read", TaskError):
        return from_task(task, spec.train, seed, info.steps_at(spec.train.batch_size), digest)
