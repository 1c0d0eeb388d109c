"""From the text of `params.yaml` to `Params`, or to a line for each thing that is wrong with it."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import yaml
from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from stages.errors import ParameterError
from stages.params.rules import broken_rules, did_you_mean
from stages.params.schema import Params

PARAMS_FILE = Path("params.yaml")


def load(path: Path = PARAMS_FILE) -> Params:
    """Reads and checks a parameter file.

    Raises:
        ParameterError: the file is missing or not YAML, or parameters are wrong: one line for each of them.
    """
    return parse(read(path), name=str(path))


def read(path: Path = PARAMS_FILE) -> str:
    """The text of a parameter file.

    Raises:
        ParameterError: the file is missing or is not text.
    """
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ParameterError(
            f"{path} is missing: run from the root of the project, or `git checkout {path}`"
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ParameterError(f"{path} cannot be read ({error}): it must be a UTF-8 text file") from error


def parse(text: str, name: str = "params.yaml") -> Params:
    """Checks the text of a parameter file; `name` stands in the messages.

    Raises:
        ParameterError: as for `load`.
    """
    params, lines = examine(text, name)
    if lines or params is None:
        raise ParameterError("\n".join(lines))
    return params


def examine(text: str, name: str = "params.yaml") -> tuple[Params | None, list[str]]:
    """Everything that is wrong with a parameter file, a line each, and the parameters as far as they can be told.

    Returns:
        Parameters in which every wrong value has been replaced by its default, so that a caller can go on looking for
        errors (None where the `variants` are wrong: too much hangs on them), and the lines.
    """
    tree = _tree(text, name)
    lines: list[str] = []
    try:
        params = Params.model_validate(tree)
    except ValidationError as error:
        lines = [f"{name}: {_explain(details)}" for details in error.errors()]
        locations = [details["loc"] for details in error.errors()]
        if any("variants" in location[:2] for location in locations):
            return None, lines
        params = Params.model_validate(_without(tree, locations))
    return params, lines + [f"{name}: {line}" for line in broken_rules(params)]


def _without(tree: dict[str, Any], locations: Sequence[Sequence[int | str]]) -> dict[str, Any]:
    """A copy of `tree` without the keys that `locations` lead to; an entry of a list takes its list with it."""
    kept = copy.deepcopy(tree)
    for location in locations:
        *way, key = [part for part in location if isinstance(part, str)]
        holder: Any = kept
        for part in way:
            holder = holder.get(part) if isinstance(holder, dict) else None
        if isinstance(holder, dict):
            holder.pop(key, None)
    return kept


_KEY_TAGS = ("tag:yaml.org,2002:str", "tag:yaml.org,2002:merge")  # the second is `<<`


class _StrictKeyLoader(yaml.SafeLoader):
    """YAML keeps the last of two equal keys without a word; here it is an error, as is a key that is no text."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        keys = [key.value for key, _ in node.value]
        for key, _ in node.value:
            if key.tag not in _KEY_TAGS:
                raise yaml.MarkedYAMLError(problem="a key is not a text; quote it", problem_mark=key.start_mark)
            if keys.count(key.value) > 1:
                raise yaml.MarkedYAMLError(problem=f"'{key.value}' stands twice", problem_mark=key.start_mark)
        return node


def _tree(text: str, name: str) -> dict[str, Any]:
    try:
        tree = yaml.load(text, Loader=_StrictKeyLoader)  # noqa: S506  a SafeLoader
    except (yaml.YAMLError, TypeError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f" in or below line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ParameterError(f"{name} is not valid YAML{place}: {problem}") from None
    if not isinstance(tree, dict):
        raise ParameterError(f"{name} must hold the sections {', '.join(Params.model_fields)}; it holds none")
    return tree


def _explain(details: ErrorDetails) -> str:
    location = details["loc"]
    name = _dotted(location)
    if details["type"] == "extra_forbidden":
        known = _known_keys(location[:-1])
        return f"{name} is unknown; allowed here: {', '.join(known)}" + did_you_mean(str(location[-1]), known)
    field = _field(location)
    allowed = _allowed(field) if field else details["msg"]
    if details["type"] == "missing":
        return f"{name} is missing; it must be {allowed}"
    return f"{name} is {_shown(details['input'])}; it must be {allowed}" + _nearest(details["input"], field)


def _dotted(location: Sequence[int | str]) -> str:
    parts = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in location]
    return "".join(parts).lstrip(".")


def _shown(value: Any) -> str:
    text = "null" if value is None else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _nearest(value: Any, field: FieldInfo | None) -> str:
    if field is None or not isinstance(value, str) or get_origin(field.annotation) is not Literal:
        return ""
    return did_you_mean(value, get_args(field.annotation))


def _known_keys(location: Sequence[int | str]) -> list[str]:
    model: type[BaseModel] = Params
    for part in location:
        field = model.model_fields.get(str(part))
        inner = _inner_model(field) if field else None
        model = inner or model
    return list(model.model_fields)


def _field(location: Sequence[int | str]) -> FieldInfo | None:
    """The field that an error is about; an entry of a list or of `variants` leads to the field that holds it."""
    model: type[BaseModel] = Params
    field: FieldInfo | None = None
    for part in location:
        found = model.model_fields.get(str(part))
        field = found or field
        inner = _inner_model(found) if found else None
        model = inner or model
    return field


def _inner_model(field: FieldInfo) -> type[BaseModel] | None:
    candidates = (field.annotation, *get_args(field.annotation))
    return next((kind for kind in candidates if isinstance(kind, type) and issubclass(kind, BaseModel)), None)


def _allowed(field: FieldInfo) -> str:
    """What a field admits, in words: its type and its range."""
    return describe(field.annotation, field.metadata)


def describe(annotation: Any, constraints: Sequence[Any]) -> str:
    """The values that a type with `annotated_types` constraints admits, in words."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return "one of " + ", ".join(str(choice) for choice in arguments)
    if origin is tuple:
        item = arguments[0]
        inner = describe(*_unwrapped(item))
        empty = "non-empty " if any(isinstance(limit, MinLen) for limit in constraints) else ""
        return f"a {empty}list, each entry {inner}"
    if origin is Union or type(None) in arguments:
        kinds = [kind for kind in arguments if kind is not type(None)]
        return " or ".join([describe(kind, constraints) for kind in kinds] + ["null"])
    if origin is dict or (isinstance(annotation, type) and issubclass(annotation, (BaseModel, Mapping))):
        return "a mapping" + _keys_of(annotation)
    text = "a non-empty text" if any(isinstance(limit, MinLen) for limit in constraints) else "a text"
    words = {bool: "true or false", int: "a whole number", float: "a number", str: text}
    return words.get(annotation, str(annotation)) + _range(constraints)


def _unwrapped(annotation: Any) -> tuple[Any, list[Any]]:
    metadata = getattr(annotation, "__metadata__", ())
    limits = [limit for extra in metadata for limit in (extra.metadata if isinstance(extra, FieldInfo) else [extra])]
    return (get_args(annotation)[0], limits) if metadata else (annotation, [])


def _keys_of(annotation: Any) -> str:
    fields = getattr(annotation, "model_fields", None)
    return f" with the keys {', '.join(fields)}" if fields else " with at least one entry"


def _range(constraints: Sequence[Any]) -> str:
    words = []
    for limit in constraints:
        if isinstance(limit, Ge):
            words.append(f"of at least {limit.ge:,}")
        elif isinstance(limit, Gt):
            words.append(f"above {limit.gt:,}")
        elif isinstance(limit, Le):
            words.append(f"at most {limit.le:,}")
        elif isinstance(limit, Lt):
            words.append(f"below {limit.lt:,}")
        elif isinstance(limit, MaxLen):
            words.append(f"of at most {limit.max_length} characters")
    return (" " + " and ".join(words)) if words else ""
