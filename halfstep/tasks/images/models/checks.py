"""Whether a model maps uint8 images to class probabilities, as the loss and the measurements assume."""

from __future__ import annotations

import numpy as np

from halfstep.tensorflow_import import keras
from halfstep.words.policies import PRECISIONS

IMAGES = 4
WEIGHTS_SD = 0.1  # of the difference between the initial weights and the others
TOLERANCE = 1e-3  # of the sum of a row; a softmax in float32 is exact to 1e-6
TOLERANCE_SPACINGS = 1.25  # rounding changes a sum by half of the spacing of the precision's numbers at most

_HOW = "end it with keras.layers.Activation('softmax', dtype='float32')"
_FUNCTIONAL = "return keras.Model(pixels, probabilities) with pixels = keras.Input(input_shape, dtype='uint8')"


def structure_problem(built: object, input_shape: tuple[int, int, int], classes: int) -> str | None:
    """What is wrong with a model, without running it; None if nothing is.

    Args:
        built: what the user's function returned.
        input_shape: `(height, width, channels)` of an image.
        classes: number of classes.
    """
    if isinstance(built, type):
        return f"returned the class {built.__name__}; it must return a keras.Model"
    if not isinstance(built, keras.Model):
        return f"returned {type(built).__name__}; it must return a keras.Model"
    if isinstance(built, keras.Sequential) and not built.built:
        return "is not built; start it with keras.Input(input_shape, dtype='uint8')"
    if not getattr(built, "inputs", None) or not getattr(built, "outputs", None):
        return f"is the subclassed model {type(built).__name__}, which plain Keras cannot load; {_FUNCTIONAL}"
    if built.compiled:
        return "is already compiled; remove compile(), because train.optimizer and train.learning_rate apply"
    return _tensor_problem(built, input_shape, classes)


def _tensor_problem(built: keras.Model, input_shape: tuple[int, int, int], classes: int) -> str | None:
    for name, tensors in (("input", built.inputs), ("output", built.outputs)):
        if len(tensors) != 1:
            return f"has {len(tensors)} {name}s; it must have 1"
    pixels, output = built.inputs[0], built.outputs[0]
    if tuple(pixels.shape[1:]) != input_shape:
        return f"takes images of shape {tuple(pixels.shape[1:])}; it must take {input_shape}"
    if (dtype := keras.backend.standardize_dtype(pixels.dtype)) != "uint8":
        return f"takes {dtype}; it must take uint8: start it with keras.Input(input_shape, dtype='uint8')"
    if tuple(output.shape) != (None, classes):
        return (
            f"has an output of shape {tuple(output.shape)}; it must be (None, {classes}): "
            f"a probability for each of the {classes} classes"
        )
    return None if built.trainable_variables else "has no trainable weights; it cannot be trained"


def output_problem(built: keras.Model, input_shape: tuple[int, int, int]) -> str | None:
    """What is wrong with a model's output on random images; None if its rows are probabilities.

    It is computed with the initial weights, and with others near them: two sigmoids sum to 1 while their weights are 0.

    The calls are stateless: they change no weight, no moving average and no seed of the model, so that the results are
    the same as without them.
    """
    draw = np.random.default_rng(0)
    images = draw.integers(0, 256, (IMAGES, *input_shape), np.uint8)
    others = [_near(weight, draw) for weight in built.trainable_variables]
    policy = keras.config.dtype_policy().compute_dtype
    for weights in (built.trainable_variables, others):
        output, _ = built.stateless_call(weights, built.non_trainable_variables, images, training=False)
        if isinstance(output, list | tuple | dict):
            return f"returns its output in a {type(output).__name__}; {_FUNCTIONAL}"
        probabilities = keras.ops.convert_to_numpy(keras.ops.cast(output, "float32"))
        if weights is others:  # large activations are no problem of the model
            probabilities = probabilities[np.isfinite(probabilities).all(axis=1)]
        if problem := probabilities_problem(probabilities, policy):
            return problem
    return None


def _near(weight: keras.Variable, draw: np.random.Generator) -> object:
    changed = keras.ops.cast(weight, "float32") + draw.normal(0, WEIGHTS_SD, weight.shape).astype("float32")
    value = keras.ops.cast(changed, weight.dtype)
    return weight.constraint(value) if weight.constraint else value


def probabilities_problem(probabilities: np.ndarray, compute_dtype: str) -> str | None:
    """What is wrong with class probabilities `(images, classes)`; None if each row is valid.

    Values that are not finite are a problem in float32 only. In 16 bits they may be caused by the precision: this is a
    result of the training.
    """
    finite = probabilities[np.isfinite(probabilities).all(axis=1)]
    is_float32 = compute_dtype == "float32"
    if len(finite) < len(probabilities) and is_float32:
        return "returns values that are not finite for random images; check the initial weights and the scaling"
    sums = finite.sum(axis=1)
    tolerance = max(TOLERANCE, TOLERANCE_SPACINGS * PRECISIONS[compute_dtype].spacing)
    if (finite < 0).any() or (np.abs(sums - 1) > tolerance).any():
        return (
            f"returns rows that sum to {sums.min():.4g} to {sums.max():.4g}, with values from {finite.min():.4g} to "
            f"{finite.max():.4g}; it must return probabilities, whose sum is 1: {_HOW}"
        )
    return None
