"""Builds and compiles the model of a variant. `profile` measures the same model that `train` trains."""

from __future__ import annotations

from stages import models, precision
from stages.params import ModelParams, TrainParams, Variant
from stages.tensorflow_import import keras

METRIC = "accuracy"


def compiled_model(
    model: ModelParams,
    train: TrainParams,
    variant: Variant,
    *,
    input_shape: tuple[int, int, int],
    classes: int,
    steps_per_epoch: int,
    seed: int,
) -> keras.Model:
    """Activates the variant, builds and compiles the network, and verifies that the variant is in force.

    Args:
        model, train, variant: sections of the parameters.
        input_shape: `(height, width, channels)` of an image.
        classes: number of classes.
        steps_per_epoch: training steps in an epoch, for the learning rate's schedule.
        seed: seed of the initial weights, which are the same under every policy.

    Raises:
        ModelError: the network cannot be built.
        PrecisionError: the variant is not in force, or `train.require_gpu` is true and there is no GPU.
    """
    precision.activate(variant, require_gpu=train.require_gpu)
    keras.utils.set_random_seed(seed)
    built = models.build(model, input_shape, classes)
    built.compile(
        optimizer=_optimizer(train, steps_per_epoch),
        loss="sparse_categorical_crossentropy",
        metrics=[METRIC],
        jit_compile=variant.xla,
    )
    built.optimizer.build(built.trainable_variables)  # creates the variables of loss scaling
    precision.verify(built, variant)
    return built


def loss_scale(model: keras.Model) -> float | None:
    """Current factor of the loss, which prevents underflow of float16 gradients; None without loss scaling."""
    scale = getattr(model.optimizer, "dynamic_scale", None)
    return None if scale is None else float(keras.ops.convert_to_numpy(scale))


def _optimizer(train: TrainParams, steps_per_epoch: int) -> keras.optimizers.Optimizer:
    rate = _schedule(train, steps_per_epoch)
    if train.optimizer == "sgd":
        return keras.optimizers.SGD(rate, momentum=0.9, nesterov=True)
    return {"adam": keras.optimizers.Adam, "adamw": keras.optimizers.AdamW}[train.optimizer](rate)


def _schedule(train: TrainParams, steps_per_epoch: int) -> keras.optimizers.schedules.LearningRateSchedule:
    """A linear warm-up over `warmup_epochs`, followed by a cosine decay to zero or a constant rate.

    A class of Keras is used for both, so that the saved model loads without this code. `alpha` is the final rate as a
    fraction of the highest.
    """
    total_steps = train.epochs * steps_per_epoch
    warmup_steps = min(round(train.warmup_epochs * steps_per_epoch), total_steps)
    return keras.optimizers.schedules.CosineDecay(
        # a warm-up from 0 would waste the first step
        initial_learning_rate=train.learning_rate / max(warmup_steps, 1),
        decay_steps=max(total_steps - warmup_steps, 1),
        alpha=1.0 if train.schedule == "constant" else 0.0,
        warmup_target=train.learning_rate if warmup_steps else None,
        warmup_steps=warmup_steps,
    )
