"""The layers of a model by path, as `float32_layers` names them and as the operations of a step are in them."""

from __future__ import annotations

from collections.abc import Iterator

from stages.tensorflow_import import keras


def layer_paths(model: keras.Model) -> dict[str, keras.layers.Layer]:
    """The layers below a model by their paths, such as `encoder/attention/query`, those above others first.

    The path of a layer is Keras's, `layer.path`. A layer without variables has none, and neither has one that is not
    built: theirs is that of what they are in, and their name. A layer that is used in several places has one path.
    """
    return dict(_below(model, "" if model.path is None else model.path, set()))


def _below(outer: keras.layers.Layer, path: str, seen: set[int]) -> Iterator[tuple[str, keras.layers.Layer]]:
    above = _path_of_layers_in(outer, path)
    for layer in outer._layers:
        if id(layer) in seen or isinstance(layer, keras.layers.InputLayer):
            continue
        seen.add(id(layer))
        found = layer.path or (f"{above}/{layer.name}" if above else layer.name)
        yield found, layer
        yield from _below(layer, found, seen)


def _path_of_layers_in(outer: keras.layers.Layer, path: str) -> str:
    """What the paths of the layers in another one begin with: nothing at the top of a functional model."""
    known = [layer.path for layer in outer._layers if layer.path is not None]
    return known[0].rpartition("/")[0] if known else path
