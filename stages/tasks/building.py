"""Builds a task under a variant, ready to train."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import numpy as np

from stages import files, precision
from stages.distribution.connecting import strategy_of
from stages.errors import TaskError
from stages.params import Variant
from stages.policies import POLICIES
from stages.results.task import TASK_INFO, TaskInfo
from stages.tasks import own, user_code
from stages.tasks.batches import TrainingData
from stages.tasks.images import task as images
from stages.tasks.ready import ReadyTask, from_task
from stages.tasks.spec import TaskSpec
from stages.tensorflow_import import keras, tf


def ready(spec: TaskSpec, variant: Variant, seed: int, *, one_image: bool = False) -> ReadyTask:
    """A task with a compiled model, of which it is verified that the variant is in force; arguments as of `build`.

    Raises:
        TaskError, ModelError: the task cannot be built or compiled.
        DataError, CorruptFileError: the prepared data are missing or damaged.
        PrecisionError: the variant is not in force, or `train.require_gpu` is true and there is no GPU.
    """
    found = build(spec, variant, seed, one_image=one_image)
    _compile(found, spec, variant)
    return found


def build(spec: TaskSpec, variant: Variant, seed: int, *, one_image: bool = False) -> ReadyTask:
    """Activates a variant, and builds the model and the data of a task.

    Args:
        spec: the task.
        variant: an entry of `variants`.
        seed: seed of the initial weights, which are the same under every policy, and of the order of the examples.
        one_image: for `images`, use views of one random image, which take no memory, instead of the prepared images.
    """
    precision.activate(variant, require_gpu=spec.train.require_gpu)
    strategy = strategy_of(spec.train.replicas)
    keras.utils.set_random_seed(seed)
    if not spec.is_images:
        return _own(spec, seed)
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        return images.build(spec, seed, strategy, one_image=one_image)


def _own(spec: TaskSpec, seed: int) -> ReadyTask:
    task = own.build(spec.task, batch_size=spec.train.batch_size, seed=seed)
    digest = spec.prepared_sha256 or files.verify_manifest(spec.directory)
    info = TaskInfo.read(spec.directory / TASK_INFO.name)
    with user_code.explained(spec.subject, "has data that cannot be read", TaskError):
        return from_task(task, spec.train, seed, info.steps_per_epoch, digest)


def _compile(found: ReadyTask, spec: TaskSpec, variant: Variant) -> None:
    model, is_own, replicas = found.model, not spec.is_images, found.replicas
    scope = contextlib.nullcontext() if replicas is None else replicas.strategy.scope()
    with user_code.explained(spec.subject, "cannot be compiled", TaskError), scope:
        model.compile(**found.task.compile, jit_compile=variant.jit_compile if replicas is None else False)
        if model.optimizer is not None:
            model.optimizer.build(model.trainable_variables)  # creates the variables of loss scaling
    if replicas is not None:
        replicas.prepare((np.zeros((1, *model.inputs[0].shape[1:]), np.uint8), np.zeros(1, np.int32)))
    else:
        _build_metrics(model, found.training)
    precision.verify(model, variant, is_own=is_own)
    if is_own and POLICIES[variant.policy].scales_loss and not _has_step_of_keras(model):
        with user_code.explained(spec.subject, "cannot be trained", TaskError):
            scales = _scales_its_loss(model, found.training)
        if not scales:
            raise TaskError(
                f"{spec.subject}: the train_step of {type(model).__name__} does not scale its loss, so that gradients "
                "are lost in float16; compute them of `self.optimizer.scale_loss(loss)`"
            )


def _build_metrics(model: keras.Model, training: TrainingData) -> None:
    """Creates the variables of the metrics. Reads no batch, and changes no weight and no state of random numbers.

    Keras would create them in the trace of the first step, and TensorFlow would have to trace the step a second time.
    A model for which this does not work is trained without it. A step of the user's own need not use these metrics.
    """
    if model.run_eagerly or not _has_step_of_keras(model):
        return
    python_state, numpy_state = random.getstate(), np.random.get_state()
    try:
        model._symbolic_build(data_batch=training.from_step(0, 1).element_spec)  # as `fit` does under a strategy
    except Exception:  # of the user's own code, too; `fit` says what is wrong, if anything is
        return
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)


def _has_step_of_keras(model: keras.Model) -> bool:
    return type(model).train_step is keras.Model.train_step


def _scales_its_loss(model: keras.Model, training: TrainingData) -> bool:
    """Whether the model's own training step calls `scale_loss`, found by tracing the step without running it."""
    optimizer, calls = model.optimizer, []
    original = optimizer.scale_loss

    def recorded(loss: Any) -> Any:
        calls.append(True)
        return original(loss)

    object.__setattr__(optimizer, "scale_loss", recorded)
    try:
        batch = training.from_step(0, 1).element_spec
        tf.function(model.train_step, autograph=False).get_concrete_function(batch)
    finally:
        vars(optimizer).pop("scale_loss", None)
    return bool(calls)
