"""How a script's models are scored: by accuracy where the targets are classes, else by the negative loss."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfstep.errors import TaskError
from halfstep.params.margin import ACCURACY, MEAN_ACCURACY, NEGATIVE_LOSS
from halfstep.tasks import user_code
from halfstep.tasks.examples import Batch
from halfstep.tensorflow_import import keras, tf
from halfstep.words.text import joined

_SPARSE = ("sparse_categorical_crossentropy",)
_ONE_HOT = ("categorical_crossentropy", "categorical_focal_crossentropy")
_BINARY = ("binary_crossentropy", "binary_focal_crossentropy")

Score = Callable[[Any, Any], NDArray[np.float64]]


def targets(batch: Batch) -> dict[str, Any]:
    """What the score of a batch is called with beside the predictions."""
    parts = {"y": batch.y, "sample_weight": batch.sample_weight, "counts": batch.counts}
    return {name: part for name, part in parts.items() if part is not None}


def score_of(model: keras.Model, batch: Batch, predicted: Any, given: str | None = None) -> tuple[str, Score] | None:
    """The name of the score of a compiled model, and a function of targets and predictions that returns `(n,)`.

    None if the model has no loss that depends on its outputs and the targets, and `given`, `task.score`, names no
    function.

    Raises:
        TaskError: the function cannot be imported.
    """
    if given is not None and ":" in given and batch.y is not None:
        module, _, name = given.partition(":")
        with user_code.explained(f"task.score = {given}", "cannot be imported", TaskError, is_script=True):
            function = getattr(importlib.import_module(module), name)
        return name, lambda targets, predicted: function(targets["y"], predicted)
    if batch.y is None or getattr(model, "_compile_loss", None) is None:
        return None
    correct = _correctness(model, batch.y, predicted)
    if correct is not None:
        name = ACCURACY if np.size(correct(batch.y, predicted)) == len(batch) else MEAN_ACCURACY
        return name, functools.partial(_weighted_mean, correct)
    return NEGATIVE_LOSS, _NegativeLoss(model)


def metric_of(model: keras.Model, name: str) -> tuple[str, Callable[[Any, Any], float]]:
    """The name of a compiled metric as a score, and a function of the targets and predictions of all examples.

    Where Keras says that lower is better, it is negated, and its name begins with `neg_`.

    Raises:
        TaskError: the model has no such metric, or Keras does not say which direction is better.
    """
    compiled = getattr(model, "_compile_metrics", None)
    metrics = {metric.name: metric for metric in (compiled.metrics if compiled is not None and compiled.built else ())}
    if name not in metrics:
        names = joined(sorted(metrics)) if metrics else "none"
        raise TaskError(
            f"task.score is '{name}', which is not a metric that the script compiles ({names}): name one of them, or a "
            "function as module:function"
        )
    direction = getattr(metrics[name], "_direction", None)  # by which Keras's own callbacks choose the best epoch
    if direction not in ("up", "down"):
        raise TaskError(f"task.score is '{name}', a metric of which Keras does not say whether higher is better")
    is_negated = direction == "down"
    return f"neg_{name}" if is_negated else name, _CompiledMetric(metrics[name], is_negated)


class _CompiledMetric:
    """A metric of Keras on examples that are given at once."""

    def __init__(self, metric: keras.metrics.Metric, is_negated: bool) -> None:
        self._metric = type(metric).from_config(metric.get_config())  # that of the model counts in `fit`
        self._sign = -1.0 if is_negated else 1.0
        self._update = tf.function(self._metric.update_state, reduce_retracing=True)

    def __call__(self, targets: dict[str, Any], predicted: Any) -> float:
        self._metric.reset_state()
        self._update(targets["y"], predicted, _weight(targets))
        return self._sign * float(self._metric.result())


def _weight(targets: dict[str, Any]) -> Any:
    """What the loss weighs each position by: the script's weights, and what counts by the mask; None without any."""
    weight = targets.get("sample_weight", targets.get("counts"))
    if "sample_weight" not in targets or "counts" not in targets or keras.tree.is_nested(weight):
        return weight
    counts, given = np.asarray(targets["counts"], np.float32), np.asarray(weight)
    return counts * given.reshape(_aligned(given.shape, counts.shape))


def _correctness(model: keras.Model, y: Any, predicted: Any) -> Callable[[Any, Any], np.ndarray] | None:
    """A function that says which classes are right, if the one output of the model is one of classes."""
    if keras.tree.is_nested(y) or keras.tree.is_nested(predicted):
        return None
    loss = keras.losses.get(model._compile_loss._user_loss) if _is_one_loss(model) else None
    name = getattr(loss, "name", None) or getattr(loss, "__name__", "")
    inner = getattr(loss, "fn", None)
    names = {name, getattr(inner, "__name__", "")}
    shape, classes = np.shape(y), np.shape(predicted)
    if names.intersection(_SPARSE) and shape in (classes[:-1], (*classes[:-1], 1)):
        ignored = getattr(loss, "_fn_kwargs", {}).get("ignore_class")
        return functools.partial(_sparse_is_correct, ignored)
    if names.intersection(_ONE_HOT) and shape == classes and classes[-1] > 1:
        return lambda y, predicted: np.argmax(y, -1) == np.argmax(predicted, -1)
    if names.intersection(_BINARY) and shape in (classes, classes[:-1]) and np.isin(y, (0, 1)).all():
        logits = getattr(loss, "_fn_kwargs", {}).get("from_logits", False)
        threshold = 0.0 if logits else 0.5
        return lambda y, predicted: (predicted.reshape(np.shape(y)) > threshold) == (np.asarray(y) > 0.5)
    return None


def _is_one_loss(model: keras.Model) -> bool:
    return not isinstance(model._compile_loss._user_loss, dict | list | tuple)


def _sparse_is_correct(ignored: int | None, y: Any, predicted: Any) -> np.ma.MaskedArray:
    y = np.asarray(y).reshape(predicted.shape[:-1])
    correct = np.argmax(predicted, -1) == y
    return np.ma.masked_array(correct, mask=np.zeros_like(correct) if ignored is None else y == ignored)


def _weighted_mean(correct: Callable[[Any, Any], np.ndarray], targets: dict[str, Any], predicted: Any) -> Any:
    """The mean of what is right in each example, by its weights; 1 where nothing counts."""
    right = correct(targets["y"], predicted)
    weights = ~np.ma.getmaskarray(right) * np.ones(right.shape)
    for name in ("sample_weight", "counts"):
        if name in targets:
            given = np.asarray(targets[name], float)
            weights *= given.reshape(_aligned(given.shape, right.shape))
    rows = len(right)
    right, weights = np.asarray(right, float).reshape(rows, -1), weights.reshape(rows, -1)
    total = weights.sum(1)
    return np.divide((right * weights).sum(1), total, out=np.ones(rows), where=total > 0)


def _aligned(shape: tuple[int, ...], whole: tuple[int, ...]) -> tuple[int, ...]:
    return (*shape[: len(whole)], *[1] * (len(whole) - len(shape)))


class _NegativeLoss:
    """The compiled loss of each example, negated, as Keras computes it for a batch of one."""

    def __init__(self, model: keras.Model) -> None:
        self._loss = model._compile_loss
        self._each = tf.function(self._mapped, reduce_retracing=True)

    def __call__(self, targets: dict[str, Any], predicted: Any) -> NDArray[np.float64]:
        weight = _weight(targets)
        parts = (targets["y"], predicted) if weight is None else (targets["y"], predicted, weight)
        tensors = keras.tree.map_structure(tf.convert_to_tensor, parts)
        return -np.asarray(self._each(tensors), np.float64)

    def _mapped(self, parts: Any) -> tf.Tensor:
        return tf.map_fn(self._one, parts, fn_output_signature=tf.float32)

    def _one(self, parts: Any) -> tf.Tensor:
        single = keras.tree.map_structure(lambda part: part[None], parts)
        return tf.cast(self._loss(*single[:2], sample_weight=single[2] if len(single) > 2 else None), tf.float32)
