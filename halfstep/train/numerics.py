"""Finds the layer in which numbers leave the range of 16 bits: by a step that is run again, operation by operation.

The step is run twice from the same state, in the precision of the variant and with all layers in float32. Each layer
reports what comes in and goes out, forward and backward, so that a custom `train_step` is looked at like Keras's own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from halfstep.results.training import LARGEST_FLOAT16, Overflow
from halfstep.tasks import precision
from halfstep.tasks.float32_layers import in_float32, is_functional
from halfstep.tasks.layers import layer_paths, replaced_calls
from halfstep.tasks.ready import ReadyTask
from halfstep.tasks.variables import optimizers_of
from halfstep.tensorflow_import import keras, tf
from halfstep.train.result import TrainingFailure
from halfstep.train.resume import Arrays, capture_state, restore_state, state_variables

_LOST = 0.5  # share of a layer's gradients that are 0 in float16 alone; a smaller one trains
_TRIED = 8  # batches, where no step is known
_MOST_REPLAYED = 5000  # steps
_FEWEST = 16  # gradients of a layer that are not 0, below which a share says nothing


@dataclass
class _Seen:
    """What one layer reports of a step: the largest absolute values, infinite where one is not finite."""

    inputs: float = 0.0
    outputs: float = 0.0
    output_gradients: float = 0.0
    input_gradients: float = 0.0


@dataclass(frozen=True)
class StepScan:
    """A step, layer by layer.

    Attributes:
        layers: by path, in the order in which their forward passes ended.
        backward: paths in the order in which gradients came back to their inputs.
        readers: by path, the layers that read a layer's output.
        gradients: of the weights, by layer and then by weight, scaled as the loss is.
        weights_finite: by layer, whether its weights are finite after the update.
    """

    layers: Mapping[str, _Seen]
    backward: tuple[str, ...]
    readers: Mapping[str, tuple[str, ...]]
    gradients: Mapping[str, tuple[np.ndarray, ...]]
    weights_finite: Mapping[str, bool]


def scan(model: keras.Model, batch: Any) -> StepScan:
    """Runs a training step operation by operation, and leaves the model as it was.

    Args:
        model: compiled and built.
        batch: a training batch, as the model's `train_step` takes it.
    """
    variables = state_variables(model)
    before, eager = capture_state(variables), tf.config.functions_run_eagerly()
    probes = _Probes(model)
    tf.config.run_functions_eagerly(True)
    try:
        with probes.attached():
            model.train_step(batch)
        finite = {
            path: all(bool(np.isfinite(np.asarray(weight, np.float32)).all()) for weight in layer.trainable_variables)
            for path, layer in probes.layers.items()
        }
    finally:
        tf.config.run_functions_eagerly(eager)
        restore_state(variables, before)
    return StepScan(probes.seen, tuple(probes.backward), probes.readers(), probes.gradients_by_layer(), finite)


class _Probes:
    """Records what goes through the layers of a model, and the gradients that its optimizers get."""

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        layers = layer_paths(model)
        loops = [path for path, layer in layers.items() if isinstance(layer, keras.layers.RNN)]
        self.layers = {path: layer for path, layer in layers.items() if not any(_is_in(path, loop) for loop in loops)}
        self.seen: dict[str, _Seen] = {}
        self.backward: list[str] = []
        self._gradients: dict[int, np.ndarray] = {}
        self._makers: dict[int, str] = {}  # of tensors, by identity; the tensors stay alive in `_kept`
        self._kept: list[Any] = []
        self._readers: dict[str, list[str]] = {}

    @contextmanager
    def attached(self) -> Iterator[None]:
        """In the block, the layers and optimizers report."""
        optimizers = optimizers_of(self._model)
        for optimizer in optimizers:
            object.__setattr__(optimizer, "apply", self._applying(optimizer.apply))
        try:
            with replaced_calls(self.layers, self._reporting):
                yield
        finally:
            for optimizer in optimizers:
                optimizer.__dict__.pop("apply")

    def readers(self) -> dict[str, tuple[str, ...]]:
        """By layer, those that read its output."""
        return {path: tuple(dict.fromkeys(paths)) for path, paths in self._readers.items()}

    def gradients_by_layer(self) -> dict[str, tuple[np.ndarray, ...]]:
        """By layer, the gradients of its own weights."""
        by_layer: dict[str, tuple[np.ndarray, ...]] = {}
        for path, layer in self.layers.items():
            inner = {id(weight) for child in layer._layers for weight in child.trainable_variables}
            own = [id(weight) for weight in layer.trainable_variables if id(weight) not in inner]
            if gradients := tuple(self._gradients[weight] for weight in own if weight in self._gradients):
                by_layer[path] = gradients
        return by_layer

    def _reporting(self, call: Callable[..., Any], path: str) -> Callable[..., Any]:
        @functools.wraps(call)
        def reporting(*arguments: Any, **options: Any) -> Any:
            seen = self.seen.pop(path, None) or _Seen()
            self.seen[path] = seen  # at the end: the layers inside it come first
            for tensor in _floats((arguments, options)):
                seen.inputs = max(seen.inputs, _largest(tensor))
                if (maker := self._makers.get(id(tensor))) is not None:
                    self._readers.setdefault(maker, []).append(path)
            arguments, options = _mapped(
                lambda tensor: _with_gradient(tensor, functools.partial(self._input_gradient, path)),
                (arguments, options),
            )
            outputs = call(*arguments, **options)
            self.seen[path] = self.seen.pop(path)
            for tensor in _floats(outputs):
                seen.outputs = max(seen.outputs, _largest(tensor))
            watched_outputs = _mapped(
                lambda tensor: _with_gradient(tensor, functools.partial(self._output_gradient, path)), outputs
            )
            for tensor in _floats(watched_outputs):
                self._makers[id(tensor)] = path
                self._kept.append(tensor)
            return watched_outputs

        return reporting

    def _output_gradient(self, path: str, gradient: Any) -> None:
        self.seen[path].output_gradients = max(self.seen[path].output_gradients, _largest(gradient))

    def _input_gradient(self, path: str, gradient: Any) -> None:
        self.seen[path].input_gradients = max(self.seen[path].input_gradients, _largest(gradient))
        self.backward.append(path)

    def _applying(self, apply: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(apply)
        def applying(grads: Any, trainable_variables: Any = None) -> Any:
            for gradient, variable in zip(grads, trainable_variables or (), strict=False):
                if gradient is not None:
                    self._gradients[id(variable)] = np.asarray(tf.convert_to_tensor(gradient), np.float32)
            return apply(grads, trainable_variables)

        return applying


def _is_in(path: str, above: str) -> bool:
    return path.startswith(f"{above}/")


def _floats(tree: Any) -> Iterator[Any]:
    yield from (leaf for leaf in tf.nest.flatten(tree) if tf.is_tensor(leaf) and leaf.dtype.is_floating)


def _mapped(change: Callable[[Any], Any], tree: Any) -> Any:
    return tf.nest.map_structure(
        lambda leaf: change(leaf) if tf.is_tensor(leaf) and leaf.dtype.is_floating else leaf, tree
    )


def _largest(tensor: Any) -> float:
    """The largest absolute value; infinity if one is not finite."""
    value = float(tf.reduce_max(tf.abs(tf.cast(tf.convert_to_tensor(tensor), tf.float32)))) if tf.size(tensor) else 0.0
    return value if np.isfinite(value) else float("inf")


def _with_gradient(tensor: Any, report: Callable[[Any], None]) -> Any:
    """The same tensor, whose gradient is reported when it comes back."""

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def identity(value: Any) -> Any:
        def gradient(upstream: Any) -> Any:
            report(upstream)
            return upstream

        return tf.identity(value), gradient

    return identity(tensor)


def overflow_of(model: keras.Model, batch: Any, step: int | None = None) -> Overflow | None:
    """Names the layer in which a step overflows; None where everything stays finite.

    Args:
        model: in the state before the step.
        batch: a training batch.
        step: number of the step, from 1, for the result.
    """
    scanned = scan(model, batch)
    place = _place(scanned)
    if place is None:
        return None
    layer, direction = place
    if (largest := _overflowing_input(model, batch, scanned, layer)) is not None:
        return Overflow(layer=layer, direction="inputs", magnitude=largest, step=step)
    magnitude = None
    with in_float32(model) as can_be:
        if can_be and (wide := scan(model, batch).layers.get(layer)) is not None:
            seen = wide.outputs if direction == "forward" else max(wide.input_gradients, wide.output_gradients)
            magnitude = seen if np.isfinite(seen) else None
    fits = direction != "forward" or magnitude is None or magnitude <= LARGEST_FLOAT16
    return Overflow(
        layer=layer,
        direction=direction,
        magnitude=magnitude,
        step=step,
        loss_scale=precision.loss_scale(model),
        readers=() if fits else scanned.readers.get(layer, ()),
    )


def _overflowing_input(model: keras.Model, batch: Any, scanned: StepScan, layer: str) -> float | None:
    """The largest value of the inputs, if it is what overflows: the model casts it to float16 before any layer does.

    A functional model casts its inputs to the types of the layers that read them, so that these can be kept in float32.
    """
    if is_functional(model) or model.compute_dtype != "float16" or np.isfinite(scanned.layers[layer].inputs):
        return None
    order = list(scanned.layers)
    x, _, _ = keras.utils.unpack_x_y_sample_weight(batch)
    largest = max((_largest(tensor) for tensor in _floats(x)), default=0.0)
    is_first = all(scanned.layers[path].outputs <= LARGEST_FLOAT16 for path in order[: order.index(layer)])
    return largest if is_first and np.isfinite(largest) and largest > LARGEST_FLOAT16 else None


def _place(scanned: StepScan) -> tuple[str, Any] | None:
    """The first layer whose numbers are not finite, forward, then backward, then in the weights.

    Inputs are recorded after the layer has cast them. If only the cast input is infinite, the layer before must stay in
    float32, too.
    """
    for path, seen in scanned.layers.items():
        if not (np.isfinite(seen.inputs) and np.isfinite(seen.outputs)):
            return path, "forward"
    own_gradients = {
        path: all(np.isfinite(item).all() for item in scanned.gradients.get(path, ())) for path in scanned.layers
    }
    for path in (*scanned.backward, *reversed(list(scanned.layers))):  # the latter have no gradient at their inputs
        seen = scanned.layers[path]
        is_finite = np.isfinite(seen.input_gradients) and own_gradients[path]
        if np.isfinite(seen.output_gradients) and not is_finite:
            return path, "backward"
    for path in reversed(list(scanned.layers)):  # what the loss itself sends back
        if not np.isfinite(scanned.layers[path].output_gradients):
            return path, "backward"
    broken = [path for path, is_finite in scanned.weights_finite.items() if not is_finite]
    return (broken[0], "weight update") if broken else None


def underflow_of(model: keras.Model, batch: Any) -> dict[str, float]:
    """By layer, the share of its gradients that are 0 in float16 and not in float32, at the loss scale in force.

    They are those of its weights, or all that it sends back. Layers in which the share is small are left out.
    """
    with in_float32(model) as can_be:
        whole = scan(model, batch) if can_be else None
    if whole is None:
        return {}
    part = scan(model, batch)
    narrow, wide = part.gradients, whole.gradients
    shares = {path: 1.0 for path, seen in part.layers.items() if _sends_nothing_back(seen, whole.layers[path])}
    for path in narrow.keys() & wide.keys():
        if any(not np.isfinite(item).all() for item in (*narrow[path], *wide[path])):
            continue
        counted = sum(int((item != 0).sum()) for item in wide[path])
        lost = sum(int(((a == 0) & (b != 0)).sum()) for a, b in zip(narrow[path], wide[path], strict=True))
        if counted >= _FEWEST and lost >= _LOST * counted:
            shares[path] = lost / counted
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


def _sends_nothing_back(narrow: _Seen, wide: _Seen) -> bool:
    return narrow.output_gradients > 0 == narrow.input_gradients and wide.input_gradients > 0


def located_overflow(
    ready: ReadyTask, failure: TrainingFailure | None, loss_scale: float | None, start: tuple[int, Arrays]
) -> Overflow | None:
    """Where a training overflowed; None where it did not, or where the step cannot be run again.

    A step that loss scaling skips now and then is normal. What is looked at is a training that failed, and one whose
    loss scale has fallen below 1.

    Args:
        ready: the task after its training, which is left as it is.
        failure: why the training failed; None if it did not.
        loss_scale: at the end.
        start: number of steps and state of the last checkpoint, or of the beginning.
    """
    if failure is None and (loss_scale is None or loss_scale >= 1):
        return None
    model, steps = ready.model, ready.training.steps_per_epoch
    variables = state_variables(model)
    before = capture_state(variables)
    try:
        if failure is None:  # the scale has fallen until the gradients fit: without scaling, they do not
            model.optimizer.dynamic_scale.assign(1.0)
        if failure is None or failure.epoch is None or failure.step is None:
            overflows = (overflow_of(model, batch) for batch in ready.training.batches(0, _TRIED))
            return next((place for place in overflows if place is not None), None)
        last = (failure.epoch - 1) * steps + failure.step - 1  # from 0
        return _replayed(ready, last, start)
    finally:
        restore_state(variables, before)


def _replayed(ready: ReadyTask, last: int, start: tuple[int, Arrays]) -> Overflow | None:
    """Runs the steps from a checkpoint again, without XLA, and looks at the two before the loss is not finite."""
    first, state = start
    if not first <= last < first + _MOST_REPLAYED:
        return None
    restore_state(state_variables(ready.model), state)
    step = tf.function(ready.model.train_step)
    for number, batch in enumerate(ready.training.batches(first, last - first + 1), start=first):
        if number >= last - 1 and (overflow := overflow_of(ready.model, batch, number + 1)) is not None:
            return overflow
        step(batch)
    return None


def located_underflow(ready: ReadyTask) -> dict[str, float]:
    """As `underflow_of`, on the first batch, with the weights and the loss scale at the end of the training."""
    return underflow_of(ready.model, next(iter(ready.training.batches(0, 1))))
