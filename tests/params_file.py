"""Changes parameters of a checkout."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml


def set_parameters(root: Path, values: Mapping[str, Any]) -> None:
    """Sets parameters in the `params.yaml` of a checkout by their dotted names; the others do not change."""
    path = root / "params.yaml"
    tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    for name, value in values.items():
        *sections, key = name.split(".")
        mapping = tree
        for section in sections:
            mapping = mapping.setdefault(section, {})
        mapping[key] = value
    path.write_text(yaml.safe_dump(tree, sort_keys=False), encoding="utf-8")
