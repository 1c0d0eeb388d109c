"""A script's own training step as a call of `fit`: a model whose step it is, on the data of its loop."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from halfstep.tensorflow_import import keras, tf

_DEPTH = 4  # of objects and functions that a step uses, through which its models are looked for
_STEPS_OF_AN_EPOCH = 100  # where the data do not say it


class StepModel(keras.Model):
    """A training step of the user's as a model, so that it is trained, timed and traced as others are.

    Attributes:
        parts: the models and layers that the step uses.
        without_input: whether its data are the one batch of its first call, because no `tf.data` iterator gave it.
        scales_loss: whether one of its optimizers scales the loss.
    """

    def __init__(
        self,
        step: Callable[[Mapping[str, Any]], Any],
        parts: Iterable[keras.layers.Layer],
        optimizers: Sequence[keras.optimizers.Optimizer],
    ) -> None:
        super().__init__(name="step")
        self.parts = list(parts)
        for number, optimizer in enumerate(optimizers):
            setattr(self, f"optimizer_{number}", optimizer)
        self._step = step
        self.without_input = False
        self.scales_loss = any(isinstance(item, keras.optimizers.LossScaleOptimizer) for item in optimizers)

    def train_step(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Runs the step on a batch."""
        outputs = keras.tree.flatten(self._step(data))
        tensors = {f"output_{number}": value for number, value in enumerate(outputs) if tf.is_tensor(value)}
        return tensors or {"output": tf.zeros(())}  # Keras wants one


Elements = dict[tf.data.Dataset, Any]  # the last element that each dataset's iterator gave, the latest one last


@contextmanager
def elements_kept() -> Iterator[Elements]:
    """In the block, the last element that each `tf.data` iterator gives is kept, outside of functions of TensorFlow."""
    kind = type(iter(tf.data.Dataset.range(1)))  # not at the import: it starts threads, with which nothing is forked
    plain, elements = kind._next_internal, Elements()

    def kept(self: Any) -> Any:
        element = plain(self)
        if tf.executing_eagerly():
            elements.pop(self._dataset, None)
            elements[self._dataset] = element
        return element

    kind._next_internal = kept
    try:
        yield elements
    finally:
        kind._next_internal = plain


def as_fit(
    function: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any], elements: Elements
) -> dict[str, Any]:
    """The arguments of a call of `fit` that does what calls of a training step do.

    The step is run once, which creates the variables that it creates in its first call.

    Args:
        function: the step, plain or a `tf.function`.
        arguments, options: of its first call.
        elements: what the script's iterators gave before it.
    """
    leaves = keras.tree.flatten((arguments, options))
    of_batch = [number for number, leaf in enumerate(leaves) if _is_batch(leaf)]
    names = {number: f"input_{place:02d}" for place, number in enumerate(of_batch)}  # of the parts of a batch

    def step(data: Mapping[str, Any]) -> Any:
        filled = [data[names[number]] if number in names else leaf for number, leaf in enumerate(leaves)]
        positional, named = keras.tree.pack_sequence_as((arguments, options), filled)
        return function(*positional, **named)

    function(*arguments, **options)
    used = list(_used_by([function, *arguments, *options.values()]))
    optimizers = [item for item in used if isinstance(item, keras.optimizers.Optimizer)]
    model = StepModel(step, [item for item in used if isinstance(item, keras.layers.Layer)], optimizers)
    is_eager = not hasattr(function, "get_concrete_function")
    model.compile(optimizer=None, run_eagerly=is_eager, jit_compile=False, auto_scale_loss=False)
    model.built = True
    batch = [leaves[number] for number in of_batch]
    dataset = _dataset_of(batch, elements)
    if dataset is None:
        model.without_input = True
        dataset = tf.data.Dataset.from_tensors(tuple(map(tf.convert_to_tensor, batch)))
    named = _of_one_size(dataset, batch).map(lambda *parts: dict(zip(names.values(), parts, strict=True)))
    steps = int(dataset.cardinality())
    return {"self": model, "x": named.repeat(), "steps_per_epoch": steps if steps > 0 else _STEPS_OF_AN_EPOCH}


def batch_as_fit(
    model: keras.Model, x: Any, y: Any = None, sample_weight: Any = None, class_weight: Any = None
) -> dict[str, Any]:
    """The arguments of a call of `fit` whose steps are those of `train_on_batch` with this batch, again and again."""
    parts = (x,) if y is None else (x, y) if sample_weight is None else (x, y, sample_weight)
    batch = keras.tree.map_structure(tf.convert_to_tensor, parts)
    repeated = tf.data.Dataset.from_tensors(batch).repeat()
    return {"self": model, "x": repeated, "class_weight": class_weight, "steps_per_epoch": _STEPS_OF_AN_EPOCH}


def _is_batch(leaf: Any) -> bool:
    return (tf.is_tensor(leaf) or isinstance(leaf, np.ndarray)) and len(leaf.shape) > 0


def _dataset_of(batch: list[Any], elements: Elements) -> tf.data.Dataset | None:
    """The dataset of the loop, with those parts that are arguments of the step; None if no iterator gave them."""
    for dataset, element in reversed(elements.items()):
        parts = tf.nest.flatten(element)
        places = [place for array in batch for place in _places(array, parts)[:1]]
        if len(places) == len(batch) > 0:
            return dataset.map(functools.partial(_chosen, places))
    return None


def _places(array: Any, parts: list[Any]) -> list[int]:
    """Where a tensor, or the NumPy array of one, stands in an element."""
    if not isinstance(array, np.ndarray):
        return [place for place, part in enumerate(parts) if part is array]
    values = {place: part.numpy() for place, part in enumerate(parts) if isinstance(part, tf.Tensor)}
    return [
        place
        for place, value in values.items()
        if array.dtype == value.dtype and array.shape == value.shape and array.tobytes() == value.tobytes()
    ]


def _chosen(places: list[int], *element: Any) -> tuple[Any, ...]:
    parts = tf.nest.flatten(element)
    return tuple(parts[place] for place in places)


def _of_one_size(dataset: tf.data.Dataset, batch: list[Any]) -> tf.data.Dataset:
    """The batches as large as the first one: their size is then known when the step is traced, as in the loop."""
    if all(spec.shape[:1].is_fully_defined() for spec in dataset.element_spec):
        return dataset
    shapes = [[len(array), *[None] * (len(array.shape) - 1)] for array in batch]  # the dataset may not know the rank

    def sized(*parts: tf.Tensor) -> tuple[tf.Tensor, ...]:
        return tuple(tf.ensure_shape(part, shape) for part, shape in zip(parts, shapes, strict=True))

    def is_full(*parts: tf.Tensor) -> tf.Tensor:
        return tf.reduce_all([tf.shape(part)[0] == shape[0] for part, shape in zip(parts, shapes, strict=True)])

    return dataset.filter(is_full).map(sized)


def _used_by(start: Iterable[Any]) -> Iterator[Any]:
    """The models, layers and optimizers that objects hold and functions use, those that hold others alone."""
    seen: set[int] = set()
    level = list(start)
    for _ in range(_DEPTH):
        below: list[Any] = []
        for item in level:
            if id(item) in seen:
                continue
            seen.add(id(item))
            if isinstance(item, keras.layers.Layer | keras.optimizers.Optimizer):
                yield item
            else:
                below += _held_by(item)
        level = below


def _held_by(item: Any) -> list[Any]:
    if isinstance(item, Mapping):
        return list(item.values())
    if isinstance(item, list | tuple | set):
        return list(item)
    item = getattr(item, "python_function", item)  # of a `tf.function`
    if isinstance(item, types.MethodType):
        return [item.__self__, item.__func__]
    if isinstance(item, types.FunctionType):
        used = inspect.getclosurevars(inspect.unwrap(item))
        return [*used.globals.values(), *used.nonlocals.values()]
    is_own = not isinstance(item, type | types.ModuleType | tf.Module | np.ndarray) and not tf.is_tensor(item)
    return list(vars(item).values()) if is_own and hasattr(item, "__dict__") else []
