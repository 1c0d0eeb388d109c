"""Calls of `fit` that a script makes before the one that is judged, such as the first phase of a fine-tuning.

The first process that comes there trains, as the script says. It keeps what later code of the script can see: the
variables of the model and of its optimizer, the history, and the states of the generators of random numbers. The other
processes go on from there, so that all variants are compared from the same start.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from halfstep.errors import TaskError
from halfstep.system import files
from halfstep.tasks.variables import random_states, set_random_states
from halfstep.tensorflow_import import keras


def history_of(
    number: int,
    fit: Callable[..., Any],
    arguments: dict[str, Any],
    *,
    folder: Path,
    build: Callable[[dict[str, Any]], None],
    keeps: bool,
) -> keras.callbacks.History:
    """What a call of `fit` returns: that of the script, or of an earlier process that made it.

    Args:
        number: of the call, from 1.
        fit: Keras's own method.
        arguments: of the call, by name, the model as `self`.
        folder: where it is kept, absolute.
        build: creates the variables of a model that `fit` was called with, by the call's arguments.
        keeps: whether what is trained is written there.

    Raises:
        TaskError: the model has other variables than the one that was trained.
    """
    arrays, described = folder / f"{number}.npz", folder / f"{number}.json"
    model = arguments["self"]
    if not described.is_file():
        history = fit(**arguments)
        if not keeps:
            return history
        with files.atomic_path(arrays) as path:
            values = {name: _portable(variable) for name, variable in _variables(model).items()}
            np.savez(path, **values)  # type: ignore[arg-type]  # its first parameters have other names
        kept = {"history": history.history, "epoch": history.epoch, "random": random_states()}
        files.write_json(described, keras.tree.map_structure(_plain, kept))
        return history
    build(arguments)
    if model.optimizer is not None and not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    variables = _variables(model)
    with np.load(arrays, allow_pickle=False) as values:
        if any(name not in variables or variables[name].shape != values[name].shape for name in values):
            raise TaskError(f"trains a model in its call of fit {number} that has other variables in each run")
        for name in values:
            variables[name].assign(values[name])
    kept = files.read_json(described)
    set_random_states(kept["random"])
    history = keras.callbacks.History()
    history.set_model(model)
    history.history, history.epoch = kept["history"], kept["epoch"]
    model.history = history
    return history


def _variables(model: keras.Model) -> dict[str, Any]:
    """The variables that training changes, by where they stand. A wrapper that scales the loss is left out."""
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    of_optimizer = () if optimizer is None else optimizer.variables
    return {f"model{number}": variable for number, variable in enumerate(model.variables)} | {
        f"optimizer{number}": variable for number, variable in enumerate(of_optimizer)
    }


def _portable(variable: Any) -> np.ndarray:
    """NumPy stores no bfloat16."""
    value = np.asarray(variable)
    return value.astype(np.float32) if value.dtype.name == "bfloat16" else value


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value
