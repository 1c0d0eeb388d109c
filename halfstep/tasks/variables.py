"""Creates the variables of a model before its first step, whatever kind of model it is."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from halfstep.tensorflow_import import eager_context, keras


def has_step_of_keras(model: keras.Model) -> bool:
    """Whether the model has no `train_step` of its own."""
    return type(model).train_step is keras.Model.train_step


def optimizers_of(model: keras.Model) -> list[keras.optimizers.Optimizer]:
    """Those of a model, of which one with its own `compile` may have several."""
    return [value for value in vars(model).values() if isinstance(value, keras.optimizers.Optimizer)]


def create_variables(model: keras.Model, batch: Any) -> None:
    """Creates the variables of a compiled model, of its metrics and of its loss, as `fit` does.

    Args:
        model: which need neither be built nor have outputs for its inputs.
        batch: of its training data, or the specification of one.
    """
    with random_state_kept():
        x, y, weight = keras.utils.unpack_x_y_sample_weight(batch)
        try:
            model._symbolic_build(data_batch=(x, y, weight))
        except Exception:  # a model with a step of its own need not have outputs; `fit` says what is wrong
            if not model.built:
                model.built = all(layer.built for layer in model._flatten_layers(include_self=False))


@contextmanager
def random_state_kept(model: keras.Model | None = None) -> Iterator[None]:
    """What the block draws changes no number that the training draws later, also in layers of `model`.

    Keras's recurrent layers draw their dropout in a prediction, too.
    """
    python, numpy, eager = random.getstate(), np.random.get_state(), _generator()
    tensorflow = eager.getstate() if eager is not None else None
    variables = [] if model is None else model.non_trainable_variables
    seeds = [(variable, variable.numpy()) for variable in variables if not keras.backend.is_float_dtype(variable.dtype)]
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        for variable, value in seeds:
            variable.assign(value)
        if tensorflow is not None:
            eager_context()._rng.setstate(tensorflow)


def random_states() -> dict[str, Any]:
    """The states of the generators of Python, NumPy and TensorFlow, as JSON can hold them."""
    kind, keys, *rest = np.random.get_state()
    eager = _generator()
    return {
        "python": random.getstate(),
        "numpy": [kind, np.asarray(keys).tolist(), *rest],
        "tensorflow": None if eager is None else eager.getstate(),
    }


def set_random_states(states: dict[str, Any]) -> None:
    """Sets what `random_states` has returned; that of TensorFlow where it has drawn before."""
    random.setstate(_state_of(states["python"]))
    kind, keys, *rest = states["numpy"]
    np.random.set_state((kind, np.asarray(keys, np.uint32), *rest))
    eager = _generator()
    if eager is not None and states["tensorflow"] is not None:
        eager.setstate(_state_of(states["tensorflow"]))


def _state_of(value: Any) -> tuple[Any, ...]:
    """JSON has lists for tuples."""
    version, keys, gauss = value
    return version, tuple(keys), gauss


def _generator() -> Any:
    """TensorFlow's generator of random numbers; None before its first operation."""
    return getattr(eager_context(), "_rng", None)
