"""The contract between halfstep and what is trained."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from halfstep.params.margin import score_name_problem

if TYPE_CHECKING:
    from halfstep.tensorflow_import import keras

_NOT_IN_COMPILE = {"jit_compile": "variants.<name>.xla sets it"}


@dataclass(frozen=True, kw_only=True)
class Task:
    """A training and its test. The function that `task.name` names returns one; `problems` says what is wrong with it.

    With `train.epochs: 0` only the speed is compared, and `test`, `score` and `score_name` may be None.

    Attributes:
        model: a built `keras.Model` that is not compiled. It may be subclassed and may have its own `train_step`; it
            then need not be built, and needs a `call` only for the test.
        compile: keyword arguments of `model.compile`, all but `jit_compile`.
        train: training data: a `tf.data.Dataset` of batches, a `keras.utils.PyDataset`, or a tuple of arrays `(x, y)`
            or `(x, y, sample_weight)`, or `x` alone, from which shuffled batches of `batch_size` are made.
        test: test data in one of these forms, with elements `(x, y)` or `(x, y, sample_weight)`.
        validation: the same; None for a training without validation.
        score: called with `(y_true, y_pred)` of a batch; returns the score of each example, `(n,)`. Higher is better.
        metric: called with `(y_true, y_pred)` of the whole test set; returns one number. Higher is better. For what is
            not a mean over examples. A task has either a score or a metric.
        score_name: name of the score or metric, in results and messages.
        class_weight: by class, what its examples weigh in the training, as of `fit`.
        callbacks: Keras callbacks of the training. An interrupted training with callbacks starts anew.
    """

    model: keras.Model
    compile: Mapping[str, Any]
    train: Any
    test: Any = None
    validation: Any = None
    score: Callable[[Any, Any], Any] | None = None
    metric: Callable[[Any, Any], Any] | None = None
    score_name: str | None = None
    class_weight: Mapping[int, float] | None = None
    callbacks: Sequence[keras.callbacks.Callback] = ()


def problems(task: Task, *, speed_only: bool) -> Iterator[str]:
    """What is wrong with a task, but for its data.

    Args:
        task: what the user's function has returned.
        speed_only: whether nothing is trained and tested.
    """
    yield from _problems_of_model(task.model)
    yield from _problems_of_compile(task.compile)
    if not (speed_only and task.score is None and task.metric is None):
        yield from _problems_of_score(task)
    if not speed_only and task.test is None:
        yield "Task.test is None; give test data, or set train.epochs to 0 to compare the speed alone"
    if task.class_weight is not None and not isinstance(task.class_weight, Mapping):
        yield f"Task.class_weight is {type(task.class_weight).__name__}; it must be a dict of numbers by class"
    if others := [type(item).__name__ for item in task.callbacks if not hasattr(item, "on_epoch_end")]:
        yield f"Task.callbacks contains {others[0]}; give objects of keras.callbacks.Callback"


def _problems_of_model(model: Any) -> Iterator[str]:
    if not hasattr(model, "train_step"):
        yield f"Task.model is {type(model).__name__}; it must be a keras.Model"
    elif model.compiled:
        yield "Task.model is compiled; remove compile(), and give its arguments as Task.compile"


def _problems_of_compile(arguments: object) -> Iterator[str]:
    if not isinstance(arguments, Mapping):
        yield f"Task.compile is {type(arguments).__name__}; it must be a dict of arguments"
        return
    for name, reason in _NOT_IN_COMPILE.items():
        if name in arguments:
            yield f"Task.compile contains {name}; remove it, because {reason}"


def _problems_of_score(task: Task) -> Iterator[str]:
    if (task.score is None) == (task.metric is None):
        given = "neither score nor metric" if task.score is None else "both score and metric"
        yield f"Task has {given}; give one of them"
    for name in ("score", "metric"):
        if getattr(task, name) is not None and not callable(getattr(task, name)):
            yield f"Task.{name} is {type(getattr(task, name)).__name__}; it must be a function"
    if problem := score_name_problem(task.score_name):
        yield f"Task.score_name is {task.score_name!r}; {problem}"
