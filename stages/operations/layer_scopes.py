"""The layers that an operation of a graph is in, by the scopes in its name."""

from __future__ import annotations

import re
from collections.abc import Container, Sequence

NUMBER = re.compile(r"_\d+$")


def layers_above(scopes: Sequence[str], paths: Container[str]) -> list[str]:
    """The paths of all layers that an operation is in, the innermost last.

    Scopes of models may come before the path of a layer. A layer that is traced again has a number more, and so may
    those that it is in.

    Args:
        scopes: the parts of the operation's name but the last, such as `("functional", "conv2d_1")`.
        paths: of the model's layers, such as `conv2d`.
    """
    plain = tuple(NUMBER.sub("", scope) for scope in scopes)
    found: list[tuple[int, str]] = []
    for first in range(len(scopes)):
        for last in range(first + 1, len(scopes) + 1):
            ends = ((above, names[last - 1]) for above in (scopes, plain) for names in (scopes, plain))
            candidates = ("/".join((*above[first : last - 1], name)) for above, name in ends)
            if (layer := next((path for path in candidates if path in paths), None)) is not None:
                found.append((last, layer))
    return [layer for _, layer in sorted(found)]
