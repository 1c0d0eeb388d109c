"""The layers that an operation of a graph is in, by the scopes in its name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def layers_above(scopes: Sequence[str], known: Mapping[str, str]) -> list[str]:
    """The paths of all layers that an operation is in, the innermost last.

    Args:
        scopes: the parts of the operation's name but the last, such as `("functional", "conv2d_2")`. Others may come
            before those of the model, as `gradient_tape` and those of loops do.
        known: the path of the layer by the scope that it has in the graph, such as `functional/conv2d_2`: TensorFlow
            numbers scopes anew, so that `conv2d_2` may be the layer `conv2d_1`.
    """
    layers: list[tuple[int, str]] = []
    for first in range(len(scopes)):
        for last in range(first + 1, len(scopes) + 1):
            if (layer := known.get("/".join(scopes[first:last]))) is not None:
                layers.append((last, layer))
    return [layer for _, layer in sorted(layers)]


def innermost_layer(name: str, known: Mapping[str, str]) -> str:
    """The path of the innermost layer that an operation is in, by its name in the graph; empty outside layers."""
    return next(reversed(layers_above(name.split("/")[:-1], known)), "")
