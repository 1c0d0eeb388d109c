"""Compiles the model of a task as its variant says, and verifies that the variant is in force."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from halfstep.errors import TaskError
from halfstep.params.schema import Variant
from halfstep.tasks import layer_calls, precision, traced_types, user_code
from halfstep.tasks.batches import TrainingData
from halfstep.tasks.float32_layers import Float32Layers, verified
from halfstep.tasks.ready import ReadyTask
from halfstep.tasks.traced_types import TracedTypes
from halfstep.tasks.trial import Trial
from halfstep.tasks.variables import create_variables, has_step_of_keras, random_state_kept
from halfstep.tensorflow_import import keras, tf


def activate(trial: Trial) -> None:
    """Puts the variant in force for the models that are built in this process; errors as of `precision.activate`."""
    precision.activate(trial.variant, require_gpu=trial.train.require_gpu)
    layer_calls.watch(trial.variant.float32_layers)


def put_in_force(ready: ReadyTask, trial: Trial) -> Float32Layers:
    """Compiles the model, which a script has done itself, and verifies the variant; errors as of `ready`.

    Returns:
        The layers that stay in float32, because the variant says so.
    """
    model, variant, is_own = ready.model, trial.variant, not trial.task.uses_data_and_model
    with user_code.explained(trial.subject, "cannot be compiled", TaskError):
        if ready.own_fit is None:
            _compile(model, ready.task.compile, variant.jit_compile)
        elif variant.xla is not None:
            model.jit_compile = variant.xla
        if is_own and scales_its_loss(model) and not variant.dtype_policy.scales_loss:
            model.optimizer = model.optimizer.inner_optimizer  # the user's code has wrapped it, under every policy
        if not model.built:  # it has a step of its own
            create_variables(model, ready.training.from_step(0, 1).element_spec)
        if model.optimizer is not None and not model.optimizer.built:  # a second time adds those of loss scaling again
            model.optimizer.build(model.trainable_variables)
    if ready.own_fit is None and not (model.built and model.trainable_variables):
        raise TaskError(
            f"{trial.subject}: Task.model has no trainable weights after compile(); call it on a batch first"
        )
    if ready.own_fit is None:
        _build_metrics(model, ready.training)
    float32 = Float32Layers()
    if variant.float32_layers:
        with user_code.explained(trial.subject, "cannot be trained", TaskError):  # a step of its own is traced here
            float32 = verified(model, variant.float32_layers, ready.training.from_step(0, 1).element_spec)
    has_step = trial.task.step is not None
    precision.verify(
        model, variant, all_layers=not is_own, scaling=not has_step, kept=float32.paths, outputs=float32.outputs
    )
    is_checked = is_own and not has_step_of_keras(model) and not has_step  # `prepare` says it of such a step
    if is_checked and variant.dtype_policy.scales_loss:
        with user_code.explained(trial.subject, "cannot be trained", TaskError):
            scales = _scales_its_loss(model, ready.training)
        if not scales:
            raise TaskError(
                f"{trial.subject}: the train_step of {type(model).__name__} does not scale its loss, so that gradients "
                "are lost in float16; compute them of `self.optimizer.scale_loss(loss)`"
            )
    return float32


def scales_its_loss(model: keras.Model) -> bool:
    """Whether the optimizer of a compiled model scales the loss."""
    return isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)


def verify_types(ready: ReadyTask, variant: Variant) -> TracedTypes | None:
    """Verifies what a task of the user's own computes in; `prepare` does, once for each variant.

    Returns:
        The types; None if the model cannot be traced.

    Raises:
        PrecisionError: the variant is not in force.
    """
    types = traced_types.traced_types(ready.model, ready.training.from_step(0, 1).element_spec)
    if types is not None:
        traced_types.verify(ready.model, variant, types)
    return types


def with_input_of(ready: ReadyTask, variant: Variant) -> ReadyTask:
    """The task with the input pipeline that an entry of `variants` asks for; a copy to the GPU needs one."""
    training = ready.training.kept() if variant.cache_input else ready.training
    if variant.prefetch_to_device and (gpus := tf.config.list_logical_devices("GPU")):
        training = replace(training, device=gpus[0].name)
    return replace(ready, training=training)


def _build_metrics(model: keras.Model, training: TrainingData) -> None:
    """Creates the variables of the metrics. Reads no batch, and changes no weight and no state of random numbers.

    Keras would create them in the trace of the first step, and TensorFlow would have to trace the step a second time.
    A model for which this does not work is trained without it. A step of the user's own need not use these metrics.
    """
    if model.run_eagerly or not has_step_of_keras(model):
        return
    with random_state_kept(), contextlib.suppress(Exception):  # of the user's own code; `fit` says what is wrong
        model._symbolic_build(data_batch=training.from_step(0, 1).element_spec)


def _compile(model: keras.Model, arguments: Mapping[str, Any], jit_compile: bool | str) -> None:
    """Compiles a model, whose own `compile` need not take `jit_compile`."""
    parameters = inspect.signature(model.compile).parameters.values()
    if any(parameter.name == "jit_compile" or parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        model.compile(**arguments, jit_compile=jit_compile)
    else:
        model.compile(**arguments)
        if isinstance(jit_compile, bool):
            model.jit_compile = jit_compile


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
