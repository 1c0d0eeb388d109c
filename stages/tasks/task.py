"""The contract between halfstep and what is trained."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stages.errors import TaskError

if TYPE_CHECKING:
    from stages.tensorflow_import import keras

SCORE_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,49}")
# Parts of names for which lower is better.
_LOWER_IS_BETTER = frozenset({"loss", "error", "mae", "mse", "rmse", "mape", "perplexity", "wer", "cer", "nll", "fid"})
_NOT_IN_COMPILE = {"jit_compile": "variants.<name>.xla sets it"}


@dataclass(frozen=True, kw_only=True)
class Task:
    """A training and its test. The function that `task.name` names returns one.

    Attributes:
        model: a built `keras.Model` that is not compiled. It may be subclassed and may have its own `train_step`.
        compile: keyword arguments of `model.compile`, all but `jit_compile`.
        train: training data: a `tf.data.Dataset` of batches, a `keras.utils.PyDataset`, or a tuple of arrays `(x, y)`,
            from which shuffled batches of `batch_size` are made.
        test: test data in one of these forms, with elements `(x, y)` or `(x, y, sample_weight)`.
        validation: the same; None for a training without validation.
        score: called with `(y_true, y_pred)` of a batch; returns the score of each example, `(n,)`. Higher is better.
        metric: called with `(y_true, y_pred)` of the whole test set; returns one number. Higher is better. For what is
            not a mean over examples. A task has either a score or a metric.
        score_name: name of the score or metric, in results and messages.

    Raises:
        TaskError: the score is missing, both are given, or a name is not allowed.
    """

    model: keras.Model
    compile: Mapping[str, Any]
    train: Any
    test: Any
    validation: Any = None
    score: Callable[[Any, Any], Any] | None = None
    metric: Callable[[Any, Any], Any] | None = None
    score_name: str

    def __post_init__(self) -> None:
        if (self.score is None) == (self.metric is None):
            found = "neither" if self.score is None else "both"
            raise TaskError(f"Task has {found} score and metric; give one of them")
        for name in ("score", "metric"):
            if getattr(self, name) is not None and not callable(getattr(self, name)):
                raise TaskError(f"Task.{name} is {type(getattr(self, name)).__name__}; it must be a function")
        if problem := score_name_problem(self.score_name):
            raise TaskError(f"Task.score_name is {self.score_name!r}; {problem}")
        if not isinstance(self.compile, Mapping):
            raise TaskError(f"Task.compile is {type(self.compile).__name__}; it must be a dict of arguments")
        for name, reason in _NOT_IN_COMPILE.items():
            if name in self.compile:
                raise TaskError(f"Task.compile contains {name}; remove it, because {reason}")


def score_name_problem(name: object) -> str | None:
    """Why a score may not have this name; None if it may."""
    if not isinstance(name, str) or not SCORE_NAME.fullmatch(name):
        return "it must have letters, digits and _, at most 50, with a letter first"
    words = name.lower().split("_")
    if words[0] not in ("neg", "negative") and (found := sorted(_LOWER_IS_BETTER.intersection(words))):
        return f"'{found[0]}' is better when it is lower: return its negative, and name it 'neg_{name}'"
    return None
