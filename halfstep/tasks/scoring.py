"""The test of a task: predictions in float32, and what is stored of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfstep.errors import TaskError
from halfstep.stats.resampling import array_length, check_metric, metric_scores
from halfstep.tasks import user_code
from halfstep.tasks.task import Task
from halfstep.tensorflow_import import keras, tf

_PERMUTATIONS = 5


class NotFiniteError(Exception):
    """The model's predictions are not finite: a result of the training, or of the precision."""


def pairs(data: tf.data.Dataset) -> Iterator[tuple[Any, Any]]:
    """Inputs and targets of each batch of test data.

    Raises:
        TaskError: the elements are not `(x, y)` or `(x, y, sample_weight)`, or there are none.
    """
    is_empty = True
    for batch in user_code.counted(data, "Task.test"):
        if not isinstance(batch, tuple) or len(batch) not in (2, 3):
            raise TaskError(f"Task.test has elements of type {type(batch).__name__}; each must be (x, y)")
        is_empty = False
        yield batch[0], batch[1]
    if is_empty:
        raise TaskError("Task.test is empty; give at least one batch")


@dataclass(frozen=True)
class Tested:
    """A test of a model.

    Attributes:
        outputs: as `evaluate` describes them.
        pairs: targets and predictions of each batch.
    """

    outputs: NDArray[Any]
    pairs: list[tuple[Any, Any]]


def evaluate(
    task: Task,
    data: tf.data.Dataset,
    predict: Callable[[Any], Any],
    *,
    keeps_predictions: bool,
    allow_not_finite: bool = False,
) -> Tested:
    """Tests a model.

    Args:
        task: its score or metric is computed.
        data: the test data.
        predict: the model's outputs for the inputs of a batch.
        keeps_predictions: whether to return the predictions instead.
        allow_not_finite: return NaN for scores and metrics of predictions that are not finite, instead of raising.

    Returns:
        Its `outputs` are predictions, float32 `(n, ...)`; or the score of each example, float64 `(n,)`; or of a metric
        its value, bootstrap replicates and jackknife values, float64, as `halfstep.stats.resampling.metric_scores`
        returns them.

    Raises:
        NotFiniteError: a prediction is not finite.
        TaskError: the score or metric raises, or returns something else.
    """
    batches = [(_arrays(y), _arrays(predict(x))) for x, y in pairs(data)]
    return Tested(_outputs(task, batches, keeps_predictions, allow_not_finite), batches)


def _outputs(
    task: Task, pairs: Sequence[tuple[Any, Any]], keeps_predictions: bool, allow_not_finite: bool
) -> NDArray[Any]:
    if keeps_predictions:
        whole = np.concatenate([predicted for _, predicted in pairs])
        if not allow_not_finite and not np.isfinite(whole).all():
            raise NotFiniteError("the trained network's probabilities are not finite")
        return whole
    batches = [(y, predicted, _is_finite(predicted)) for y, predicted in pairs]
    all_finite = all(is_finite.all() for _, _, is_finite in batches)
    if not all_finite and not allow_not_finite:
        raise NotFiniteError("the predictions on the test data are not finite")
    if task.score is not None:
        return np.concatenate([_scores(task, *batch) for batch in batches])
    examples = sum(len(is_finite) for _, _, is_finite in batches)
    return _metric(task, batches) if all_finite else np.full(array_length(examples), np.nan)


def _arrays(values: Any) -> Any:
    """NumPy arrays of tensors; all floating-point numbers become float32."""
    return keras.tree.map_structure(_as_float32, values)


def _as_float32(value: Any) -> np.ndarray:
    array = keras.ops.convert_to_numpy(value)
    # NumPy has no bfloat16: its kind is V
    return array.astype(np.float32) if array.dtype.kind in "fV" and array.dtype != np.float32 else array


def _is_finite(predicted: Any) -> NDArray[np.bool_]:
    """Whether all predictions for an example are finite, `(n,)`."""
    leaves = keras.tree.flatten(predicted)
    return np.all([np.isfinite(leaf.reshape(len(leaf), -1)).all(axis=1) for leaf in leaves], axis=0)


def _scores(task: Task, y: Any, predicted: Any, is_finite: NDArray[np.bool_]) -> NDArray[np.float64]:
    """The scores of a batch, checked; NaN where a prediction is not finite."""
    assert task.score is not None
    given = f"y_true {_shapes(y)} and y_pred {_shapes(predicted)}"
    with user_code.explained(f"Task.score ({task.score_name})", f"fails for {given}", TaskError):
        copies = keras.tree.map_structure(np.copy, (y, predicted))  # it may write into them
        scores = np.asarray(_arrays(task.score(*copies)), dtype=np.float64)
    if scores.shape != is_finite.shape:
        raise TaskError(
            f"Task.score ({task.score_name}) returns shape {scores.shape} for {len(is_finite)} examples, {given}; it "
            f"must return one number for each, shape ({len(is_finite)},); for one number of all examples, Task.metric"
        )
    if not np.isfinite(scores[is_finite]).all():
        raise TaskError(f"Task.score ({task.score_name}) returns values that are not finite for finite predictions")
    return np.where(is_finite, scores, np.nan)


def _metric(task: Task, batches: Sequence[tuple[Any, Any, Any]]) -> NDArray[np.float64]:
    assert task.metric is not None
    y, predicted, _ = _joined(batches)
    with _metric_explained(task, y, predicted):
        return metric_scores(task.metric, y, predicted)


def _metric_explained(task: Task, y: Any, predicted: Any) -> AbstractContextManager[None]:
    given = f"y_true {_shapes(y)} and y_pred {_shapes(predicted)}"
    return user_code.explained(f"Task.metric ({task.score_name})", f"fails for {given}", TaskError)


def _shapes(values: Any) -> str:
    """The shapes of arrays in words."""
    return f"of shape {' and '.join(str(np.shape(leaf)) for leaf in keras.tree.flatten(values))}"


def first_scores(task: Task, data: tf.data.Dataset, predict: Callable[[Any], Any]) -> NDArray[np.float64]:
    """The scores of the first batch of test data; empty for a task with a metric. Errors as of `evaluate`."""
    if task.score is None:
        return np.empty(0)
    return evaluate(task, data.take(1), predict, keeps_predictions=False, allow_not_finite=True).outputs


def check_metric_of(task: Task, data: tf.data.Dataset, predict: Callable[[Any], Any]) -> None:
    """Computes the metric on the test data, and on a few resamples; does nothing for a task with a score.

    Raises:
        TaskError: the metric raises, or returns something else than one number, or another one when called again.
    """
    if task.metric is None:
        return
    y, predicted = _joined([(_arrays(y), _arrays(predict(x))) for x, y in pairs(data)])
    with _metric_explained(task, y, predicted):
        check_metric(task.metric, y, predicted)


def permuted_scores(task: Task, tested: Tested) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """The score of each example, and the mean of those with the predictions for a few other examples, drawn at random.

    Returns:
        Both float64 `(n,)`; None for a metric, and where the examples have different shapes.
    """
    if task.score is None:
        return None
    try:
        y, predicted = _joined(tested.pairs)
    except ValueError:  # of different shapes
        return None
    sizes = [len(keras.tree.flatten(prediction)[0]) for _, prediction in tested.pairs]
    rows = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])

    def scores(other: NDArray[np.int64]) -> NDArray[np.float64]:
        finite = (np.ones(len(chosen), bool) for chosen in rows)
        parts = zip(rows, finite, strict=True)
        return np.concatenate([_scores(task, _rows(y, one), _rows(predicted, other[one]), all_) for one, all_ in parts])

    total = sum(sizes)
    draws = [scores(np.random.default_rng(seed).permutation(total)) for seed in range(_PERMUTATIONS)]
    return scores(np.arange(total)), np.asarray(np.mean(draws, axis=0))


def _rows(values: Any, chosen: NDArray[np.int64]) -> Any:
    return keras.tree.map_structure(lambda leaf: leaf[chosen], values)


def _joined(batches: Sequence[tuple[Any, ...]]) -> Any:
    return keras.tree.map_structure(lambda *parts: np.concatenate(parts), *batches)
