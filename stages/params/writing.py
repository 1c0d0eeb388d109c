"""Adds a variant to params.yaml, and keeps everything else as it is written there, comments included."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq

from stages import files
from stages.params.reading import PARAMS_FILE

_NULL = "tag:yaml.org,2002:null"


def add_variant(name: str, entry: dict[str, Any], path: Path = PARAMS_FILE) -> None:
    """Adds an entry to `variants`, or replaces that of the same name, and adds it to `train.variants`."""
    document = YAML(typ="rt", pure=True)  # its loader builds no objects, like the safe one
    document.preserve_quotes, document.width = True, 120
    document.representer.add_representer(type(None), lambda found, _: found.represent_scalar(_NULL, "null"))
    tree = document.load(path.read_text(encoding="utf-8"))
    written = CommentedMap(
        {key: _sequence(value) if isinstance(value, list | tuple) else value for key, value in entry.items()}
    )
    written.fa.set_flow_style()
    tree["variants"][name] = written
    listed = tree["train"]["variants"]
    if name not in listed:
        listed.append(name)
    text = io.StringIO()
    document.dump(tree, text)
    files.write_text(path, text.getvalue())


def _sequence(values: list[Any] | tuple[Any, ...]) -> CommentedSeq:
    found = CommentedSeq(values)
    found.fa.set_flow_style()
    return found
