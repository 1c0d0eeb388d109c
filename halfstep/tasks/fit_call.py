"""A script's call of `fit` as a task: the same batches, the same compiled model, and examples to compare models on."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import GeneratorType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfstep.errors import HalfstepError, TaskError
from halfstep.results.task import TaskInfo
from halfstep.system import files, xla_flags
from halfstep.tasks import compiling, examples, script, script_score
from halfstep.tasks.batches import TrainingData, batches_in_order, from_step, py_dataset
from halfstep.tasks.callbacks import redirected
from halfstep.tasks.earlier_fits import history_of
from halfstep.tasks.examples import Batch, as_array
from halfstep.tasks.ready import ReadyTask, test_metrics, untested
from halfstep.tasks.task import Task
from halfstep.tasks.trial import FITS, Trial
from halfstep.tasks.variables import create_variables, random_state_kept
from halfstep.tensorflow_import import data_adapters, keras, reset_uids, tf, train_validation_split

HELD_OUT = 0.2  # of training arrays without validation data: a tenth for validation and one for the test


class FitCall:
    """The data and the model of a captured call.

    Attributes:
        call: the call.
        arguments: of `fit` for the training alone, without validation data and callbacks.
        validation: what the script validates on, as `fit` takes it; None without.
        held_out: whether the validation examples were taken from the training data.
    """

    def __init__(self, call: script.Call, batch_size: int | None = None) -> None:
        self.call = call
        arguments, self._first = dict(call.arguments), None
        if isinstance(arguments["x"], GeneratorType):
            arguments["x"], self._first = _peeked(arguments["x"])
        given, fraction = arguments.pop("validation_data"), arguments.pop("validation_split")
        self.held_out = False
        if given is None and not fraction and _are_arrays(arguments["x"]) and arguments["y"] is not None:
            fraction, self.held_out = HELD_OUT, True
        if given is None and fraction:
            parts = tuple(arguments.pop(name) for name in ("x", "y", "sample_weight"))
            kept, given = train_validation_split(parts, validation_split=fraction)
            arguments |= dict(zip(("x", "y", "sample_weight"), kept, strict=True))
        if isinstance(arguments["x"], tf.data.Dataset | GeneratorType):
            arguments["shuffle"] = False  # `fit` ignores it, with a warning
        self.validation, self.arguments = given, arguments
        if batch_size is not None and self.takes_batch_size:
            arguments["batch_size"] = batch_size

    @property
    def takes_batch_size(self) -> bool:
        """Whether the script gives arrays, from which Keras makes batches."""
        return _are_arrays(self.arguments["x"])

    @property
    def epochs(self) -> int:
        """Number of epochs that the script asks for."""
        return int(self.arguments["epochs"]) - int(self.arguments["initial_epoch"])

    @functools.cached_property
    def batches(self) -> tf.data.Dataset:
        """One pass over the batches of `fit`, from Keras's own adapter."""
        names = ("x", "y", "sample_weight", "batch_size", "steps_per_epoch", "shuffle", "class_weight")
        return _batches(**{name: self.arguments[name] for name in names})

    @functools.cached_property
    def first_batch(self) -> Any:
        """The first batch of the training."""
        return self._first if self._first is not None else self.first_batches(1)[0]

    def first_batches(self, count: int) -> list[Any]:
        """The first batches of the training. What they draw changes nothing that is drawn later."""
        x, weights = self.arguments["x"], self.arguments["class_weight"]
        with random_state_kept():
            if not isinstance(x, keras.utils.PyDataset):
                return list(islice(iter(self.batches), count))
            weighted = _with_weights(weights)  # without threads, which would go on drawing
            return [
                weighted(*keras.tree.map_structure(tf.convert_to_tensor, batch))
                for batch in islice(batches_in_order(x), count)
            ]

    def steps_per_epoch(self) -> int:
        """Number of batches in an epoch; reads the data once if nothing else says it."""
        if self.arguments["steps_per_epoch"]:  # an epoch of `fit` has so many steps, whatever the data have
            return int(self.arguments["steps_per_epoch"])
        length = int(self.batches.cardinality())
        if length == tf.data.INFINITE_CARDINALITY:
            raise TaskError("calls fit with endless data and without steps_per_epoch")
        return length if length > 0 else sum(1 for _ in self.batches)

    def validation_batches(self) -> Iterator[Batch]:
        """The validation examples, in the script's batches."""
        x, y, weight = keras.utils.unpack_x_y_sample_weight(self.validation)
        steps = self.call.arguments["validation_steps"]
        if isinstance(x, keras.utils.PyDataset):
            for batch in islice(batches_in_order(x), steps):
                yield _as_examples(batch)
            return
        size = self.call.arguments["validation_batch_size"] or self.arguments["batch_size"]
        dataset = _batches(x=x, y=y, sample_weight=weight, batch_size=size, steps_per_epoch=steps, shuffle=False)
        if steps is None and int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY:
            raise TaskError("calls fit with endless validation data and without validation_steps")
        for batch in dataset if steps is None else dataset.take(steps):
            yield _as_examples(batch)

    def callbacks(self, folder: Path | None) -> list[Any]:
        """The script's callbacks, as `redirected` returns them."""
        given = self.call.arguments["callbacks"] or []
        return redirected(getattr(given, "callbacks", given if isinstance(given, list | tuple) else [given]), folder)

    def fit(self, *, epochs: int, callbacks: Sequence[Any], validation: Any, folder: Path | None, verbose: Any) -> None:
        """Trains as the script's call of `fit` says; arguments as of `OwnFit`."""
        values = self.arguments | {
            "epochs": self.arguments["initial_epoch"] + epochs,
            "callbacks": [*self.callbacks(folder), *callbacks],
            "validation_data": validation,
            "validation_steps": None,
            "validation_batch_size": None,
            "verbose": verbose,
        }
        self.call.fit(self.call.model, **values)

    def build(self) -> None:
        """Creates the variables of the model, its metrics and its loss as `fit` does in its first step."""
        create_variables(self.call.model, self.first_batch)


def _batches(**arguments: Any) -> tf.data.Dataset:
    """One pass over the batches that `fit` makes of its arguments."""
    x, weights = arguments["x"], arguments.get("class_weight")
    if isinstance(x, keras.utils.PyDataset):  # Keras's queue for it can be read in `fit` alone
        dataset = py_dataset(x, epochs=1)
        return dataset if weights is None else dataset.map(_with_weights(weights))
    with random_state_kept(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # `fit` itself gives them
        return data_adapters.get_data_adapter(**arguments).get_tf_dataset()


def _with_weights(class_weight: Mapping[int, float] | None) -> Callable[..., Any]:
    """Gives the examples of a batch the weights of their classes, as `fit` does."""
    if class_weight is None:
        return lambda *batch: batch
    weighted: Callable[..., Any] = data_adapters.tf_dataset_adapter.make_class_weight_map_fn(class_weight)
    return weighted


def _as_examples(batch: Any) -> Batch:
    return Batch(*examples.mapped(as_array, keras.utils.unpack_x_y_sample_weight(batch)))


def _are_arrays(x: Any) -> bool:
    return not isinstance(x, tf.data.Dataset | keras.utils.PyDataset | GeneratorType) and hasattr(
        keras.tree.flatten(x)[0] if keras.tree.flatten(x) else None, "shape"
    )


def _peeked(generator: Any) -> tuple[Any, Any]:
    """A generator with the same elements, and the first of them."""
    first = next(generator)

    def again() -> Iterator[Any]:
        yield first
        yield from generator

    return again(), first


def build(trial: Trial) -> ReadyTask:
    """The captured task, whose model is compiled and built; the same object in each call in one process.

    Raises:
        TaskError: the script cannot be taken.
        DataError, CorruptFileError: the prepared data are missing or damaged.
    """
    global _ready
    if _ready is None:
        _ready = _build(trial)
    return _ready


_ready: ReadyTask | None = None


def _build(trial: Trial) -> ReadyTask:
    directory = trial.directory.absolute()
    digest = trial.prepared_sha256 or files.verify_manifest(directory)
    info = trial.info
    fit_call = FitCall(script.call(), trial.train.batch_size)
    fit_call.build()
    ready = replace(untested_task(fit_call, info.steps_per_epoch or 1), data_sha256=digest)
    return ready if info.speed_only is not None else _tested(ready, fit_call, info, directory, trial.task.score)


def untested_task(fit_call: FitCall, steps: int) -> ReadyTask:
    """The model and the batches of a call, without a test."""
    task = Task(model=fit_call.call.model, compile={}, train=None, score=_no_score, score_name="none")
    return ReadyTask(
        task=task,
        training=training_of(fit_call, steps),
        validation=None,
        test=untested(fit_call.first_batch),
        keeps_predictions=False,
        test_metrics=functools.partial(test_metrics, task),
        data_sha256="",
        own_fit=fit_call.fit,
    )


def inside(trial: Trial, go_on: Callable[[], None], *, log: Path | None = None, keeps: bool = True) -> None:
    """Calls `go_on`, of a script in its call of `fit` that is judged, as `script.inside` does.

    Args:
        trial: of any task.
        go_on: what the process is for; it may use `script.call`.
        log: for what the script prints; None: its own.
        keeps: as of `history_of`.
    """
    with xla_flags.programs_in(trial.programs):
        if trial.task.script is None:
            go_on()
            return
        try:
            compiling.activate(trial)
        except HalfstepError:
            go_on()  # which fails in the same way
            return
        reset_uids()

        def build(arguments: dict[str, Any]) -> None:
            model = arguments["self"]
            given = {name: value for name, value in arguments.items() if name != "self"}
            FitCall(script.Call(model, model.fit, given)).build()

        folder = (trial.directory / FITS / str(trial.seed)).absolute()
        earlier = functools.partial(history_of, folder=folder, build=build, keeps=keeps)
        script.inside(trial, log or trial.script_log(), earlier, go_on)


def training_of(fit_call: FitCall, steps: int) -> TrainingData:
    """The batches of the script again and again, for the timing."""
    return TrainingData(steps, lambda first, count: from_step(fit_call.batches.repeat(), first, count))


def _tested(ready: ReadyTask, fit_call: FitCall, info: TaskInfo, directory: Path, given: str | None) -> ReadyTask:
    """The task with the examples that `prepare` wrote, and its score or metric."""
    validation, test = examples.halves(examples.read(directory))
    elements = [tuple(part for part in (half.x, half.y, half.sample_weight) if part is not None) for half in validation]
    if info.score_kind == "metric":
        assert given is not None, "prepare has found it"
        metric = script_score.metric_of(fit_call.call.model, given)[1]
        task = replace(ready.task, score=None, metric=metric, score_name=info.score_name)
    else:
        scored = score(fit_call, test[0], given)
        assert scored is not None, "prepare has found one"
        task = replace(ready.task, score=scored[1], score_name=info.score_name)
    return replace(
        ready,
        task=task,
        validation=examples.as_dataset(elements),
        test=examples.as_dataset([(half.x, script_score.targets(half)) for half in test]),
        test_metrics=functools.partial(test_metrics, task),
    )


def _no_score(*_: Any) -> NDArray[np.float64]:
    raise TaskError("nothing is scored")


def score(fit_call: FitCall, batch: Batch, given: str | None) -> tuple[str, script_score.Score] | None:
    """The name and function of the score: `given` is `task.score`, or else the outputs for a batch tell."""
    with random_state_kept(fit_call.call.model):
        predicted = keras.tree.map_structure(np.asarray, fit_call.call.model.predict_on_batch(batch.x))
    return script_score.score_of(fit_call.call.model, batch, predicted, given)


def mask_of(model: keras.Model, x: Any) -> Any:
    """Which positions of the model's outputs count, by its mask for these inputs; None without a mask."""
    with random_state_kept(model):
        outputs = model(x, training=False)
    if keras.tree.is_nested(outputs):
        return None
    mask = getattr(outputs, "_keras_mask", None)
    return None if mask is None else np.asarray(mask)
