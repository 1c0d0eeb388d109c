"""How a variant's model is made ready to train: what `train` runs is what `profile` times."""

from __future__ import annotations

import keras

from stages import models, precision
from stages.params import ModelParams, TrainParams, Variant

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
    """Turns the variant on, builds and compiles the network, and proves that the variant is in force.

    Args:
        model, train, variant: their sections of the parameters.
        input_shape: `(height, width, channels)` of an image.
        classes: number of classes.
        steps_per_epoch: training steps in an epoch, on which the learning rate's schedule runs.
        seed: seed of the weights; the same under every policy, so that before and after start equal.

    Raises:
        ModelError: the network cannot be built.
        PrecisionError: the variant is not in force, or there is no GPU where one is required.
    """
    precision.turn_on(variant, require_gpu=train.require_gpu)
    keras.utils.set_random_seed(seed)
    built = models.build(model, input_shape, classes)
    built.compile(
        optimizer=_optimizer(train, steps_per_epoch),
        loss="sparse_categorical_crossentropy",
        metrics=[METRIC],
        jit_compile=variant.xla,
    )
    built.optimizer.build(built.trainable_variables)  # loss scaling has its variables only from here on
    precision.prove(built, variant)
    return built


def loss_scale(model: keras.Model) -> float | None:
    """The factor that the loss is multiplied by to keep float16 gradients from vanishing; None without loss scaling."""
    scale = getattr(model.optimizer, "dynamic_scale", None)
    return None if scale is None else float(keras.ops.convert_to_numpy(scale))


def _optimizer(train: TrainParams, steps_per_epoch: int) -> keras.optimizers.Optimizer:
    rate = _schedule(train, steps_per_epoch)
    if train.optimizer == "sgd":
        return keras.optimizers.SGD(rate, momentum=0.9, nesterov=True)
    return {"adam": keras.optimizers.Adam, "adamw": keras.optimizers.AdamW}[train.optimizer](rate)


def _schedule(train: TrainParams, steps_per_epoch: int) -> keras.optimizers.schedules.LearningRateSchedule:
    """Rises in a line over `warmup_epochs`, then falls along half a cosine to zero, or stays.

    One class of Keras's own serves both, so that the saved model loads without this code: `alpha` is the share of the
    rate at which the decay ends.
    """
    total_steps = train.epochs * steps_per_epoch
    warmup_steps = min(round(train.warmup_epochs * steps_per_epoch), total_steps)
    return keras.optimizers.schedules.CosineDecay(
        # the rate of the first step, which would be lost at a rate of 0
        initial_learning_rate=train.learning_rate / max(warmup_steps, 1),
        decay_steps=max(total_steps - warmup_steps, 1),
        alpha=1.0 if train.schedule == "constant" else 0.0,
        warmup_target=train.learning_rate if warmup_steps else None,
        warmup_steps=warmup_steps,
    )
