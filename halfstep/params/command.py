"""`halfstep params > docs/parameters.md`: prints the reference of all parameters as Markdown."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from halfstep.params.loading import allowed_values, inner_model
from halfstep.params.schema import Params

_INTRODUCTION = """# Parameters

Edit `params.yaml`, or override a parameter for one experiment: `dvc exp run -S train.batch_size=128`.
`halfstep params > docs/parameters.md` writes this page.
"""


def parameter_table() -> str:
    """All parameters as Markdown: a heading, a sentence and a table for each section of `params.yaml`."""
    parts = []
    for name, field in Params.model_fields.items():
        section = inner_model(field)
        assert section is not None
        prefix = f"{name}.<name>." if section is not field.annotation else f"{name}."
        rows = "\n".join(_rows(section, prefix))
        header = "| parameter | meaning | allowed | default |\n| --- | --- | --- | --- |"
        parts.append(f"## `{name}`\n\n{section.__doc__}\n\n{header}\n{rows}\n")
    return "\n".join(parts)


def _rows(section: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, field in section.model_fields.items():
        nested = inner_model(field)
        if nested is not None:
            yield from _rows(nested, f"{prefix}{name}.")
            continue
        default = "required" if field.is_required() else f"`{_yaml(field.default)}`"
        yield f"| `{prefix}{name}` | {field.description} | {allowed_values(field)} | {default} |"


def _yaml(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_yaml, value))}]"
    return json.dumps(value).strip('"')


def main() -> None:
    """Prints docs/parameters.md, or the JSON schema with which an editor checks and completes `params.yaml`."""
    parser = argparse.ArgumentParser(prog="halfstep params", description="Prints the reference of all parameters.")
    parser.add_argument("--json", action="store_true", help="print their JSON schema instead")
    if parser.parse_args().json:
        print(json.dumps(Params.model_json_schema(), indent=2))
        return
    print(f"{_INTRODUCTION}\n{parameter_table()}", end="")
