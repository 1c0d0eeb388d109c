"""Saves a trained model: whole where plain Keras can load it, else its weights."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from halfstep.results.training import MODEL, WEIGHTS
from halfstep.tasks.layers import layer_paths
from halfstep.tasks.ready import ReadyTask
from halfstep.tensorflow_import import keras


def model_file(model: keras.Model) -> str:
    """Name of the file for a model; its weights alone if it has classes or functions that plain Keras does not have."""
    try:
        config = json.loads(model.to_json())
    except (NotImplementedError, OSError, TypeError, ValueError):
        return WEIGHTS  # a subclassed model without a configuration, or a lambda without source
    return MODEL if all(_is_plain(part) for part in _objects(config)) else WEIGHTS


def form_of(ready: ReadyTask) -> tuple[str, list[str]]:
    """Name of the file for a trained model, and the layers for which it is saved as weights, as `lost_on_loading`."""
    name = MODEL if ready.keeps_predictions else model_file(ready.model)
    lost = lost_on_loading(ready.model) if ready.float32.paths and name == MODEL else []
    return WEIGHTS if lost else name, lost


def lost_on_loading(model: keras.Model) -> list[str]:
    """Paths of the layers that would compute in another type after plain Keras has loaded the model.

    The layers inside another layer are created anew by its code, with the type of that layer.
    """
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("float32")  # as where nothing sets it
    try:
        loaded = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(model))
    finally:
        keras.config.set_dtype_policy(before)
    pairs = zip(layer_paths(model).items(), layer_paths(loaded).values(), strict=True)
    # a model computes nothing itself, and its policy is not saved
    leaves = ((path, layer, copy) for (path, layer), copy in pairs if not isinstance(layer, keras.Model))
    return [path for path, layer, copy in leaves if layer.compute_dtype != copy.compute_dtype]


def save(model: keras.Model, path: Path) -> None:
    """Saves a model, or its weights alone, as the name of the file says."""
    if path.name.endswith("".join(Path(WEIGHTS).suffixes)):
        model.save_weights(path)
    else:
        model.save(path)


def _objects(config: Any) -> Iterator[dict[str, Any]]:
    """All serialized objects in a configuration of Keras."""
    if isinstance(config, dict):
        if "class_name" in config and "module" in config:
            yield config
        for value in config.values():
            yield from _objects(value)
    elif isinstance(config, list):
        for value in config:
            yield from _objects(value)


def _is_plain(part: dict[str, Any]) -> bool:
    """Whether plain Keras can create an object: it does not run stored code, and knows its own functions alone."""
    if part["class_name"] == "function":
        try:
            keras.saving.deserialize_keras_object(part)
        except (TypeError, ValueError):
            return False
    is_known = str(part["module"]).partition(".")[0] in ("keras", "builtins")
    return is_known and part["class_name"] not in ("Lambda", "__lambda__")
