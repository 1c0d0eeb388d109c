"""Parses `params.yaml` into `Params`, and reports each error in one line."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from halfstep.errors import ParameterError, one_line
from halfstep.params.reading import PARAMS_FILE, dotted, parse_tree, read
from halfstep.params.rules import broken_rules, did_you_mean
from halfstep.params.schema import QUANTIZED_POLICIES, Params
from halfstep.words.text import yaml_text

MAX_LINES = 50  # for each kind of error
RENAMED = {"compare.accuracy_margin": "compare.quality_margin"}
_ONE_DEVICE = "0.4: one device trains a model"
REMOVED = {
    "train.replicas": _ONE_DEVICE,
    "train.batch_norm": _ONE_DEVICE,
    "fleet.hosts_per_training": _ONE_DEVICE,
    "compare.register": "0.4: MLflow's model page registers a model",
    "serve.own_precision": "0.4: weights are served in float32, which every runtime takes",
}


def load(path: Path = PARAMS_FILE) -> Params:
    """Reads and checks a parameter file.

    Raises:
        ParameterError: the file is missing or not YAML, or parameters are invalid: one line for each.
    """
    return parse(read(path), name=str(path))


def parse(text: str, name: str = "params.yaml") -> Params:
    """Parses and checks the text of a parameter file; the messages call the file `name`.

    Raises:
        ParameterError: as for `load`.
    """
    params, lines = examine(text, name)
    if lines or params is None:
        raise ParameterError(*lines)
    return params


def examine(text: str, name: str = "params.yaml") -> tuple[Params | None, list[str]]:
    """Finds all errors in the text of a parameter file.

    Returns:
        The parameters, with the default in place of each invalid value so that the caller can look for further errors,
        and one line for each error. The parameters are None if `variants` is invalid, on which other sections depend.
    """
    tree = parse_tree(text, name)
    lines: list[str] = []
    try:
        params = Params.model_validate(tree)
    except ValidationError as error:
        errors = error.errors(include_url=False)
        for details in errors:
            details["loc"] = _location(details["loc"])
        lines = _first(iter(dict.fromkeys(f"{name}: {_explain(details)}" for details in errors)))
        locations = [details["loc"] for details in errors]
        if any("variants" in location[:2] for location in locations):
            return None, lines
        params = Params.model_validate(_without(tree, locations))
    return params.with_interpreters(), lines + _first(f"{name}: {line}" for line in broken_rules(params))


def _location(parts: Sequence[int | str]) -> tuple[int | str, ...]:
    """The place of a value, without the parts that pydantic adds for each type that a field may have."""
    model: type[BaseModel] | None = Params
    location: list[int | str] = []
    for part in parts:
        if model is None and isinstance(part, str):
            continue
        location.append(part)
        if model is not None and (field := model.model_fields.get(str(part))) is not None:
            model = inner_model(field)
    return tuple(location)


def _first(lines: Iterator[str]) -> list[str]:
    first = list(islice(lines, MAX_LINES))
    return [*first, f"there are more than {MAX_LINES} errors; correct these first"] if next(lines, None) else first


def _without(tree: dict[str, Any], locations: Sequence[Sequence[int | str]]) -> dict[str, Any]:
    """A copy of `tree` without the keys at `locations`. For an invalid item of a list, removes the whole list."""
    remaining = copy.deepcopy(tree)
    for location in locations:
        *parents, key = [part for part in location if isinstance(part, str)]
        mapping: Any = remaining
        for part in parents:
            mapping = mapping.get(part) if isinstance(mapping, dict) else None
        if isinstance(mapping, dict):
            mapping.pop(key, None)
    return remaining


def _explain(details: ErrorDetails) -> str:
    location, value = details["loc"], details["input"]
    name = dotted(location)
    if details["type"] == "extra_forbidden":
        if name in RENAMED:
            return f"{name} was renamed to {RENAMED[name]}; rename it"
        if name in REMOVED:
            return f"{name} was removed in {REMOVED[name]}; remove the line"
        known = list(_find(location[:-1])[0].model_fields)
        return f"{name} is unknown; allowed here: {', '.join(known)}" + did_you_mean(str(location[-1]), known)
    _, field = _find(location)
    allowed = allowed_values(field) if field else details["msg"]
    if details["type"] == "string_pattern_mismatch":
        return f"{name} is {_shown(value)}; it must be {allowed}, on one line and without control characters"
    if details["type"] == "missing":
        return f"{name} is missing; it must be {allowed}"
    if location[-1] == "policy" and isinstance(value, str) and value.startswith(QUANTIZED_POLICIES):
        scope = "quantized policies are out of scope: halfstep compares float32 with 16-bit floating point"
        return f"{name} is {_shown(value)}; {scope}; it must be {allowed}"
    return f"{name} is {_shown(value)}; it must be {allowed}" + _nearest(value, field)


def _shown(value: Any) -> str:
    return one_line("null" if value is None else repr(value), 80)


def _nearest(value: Any, field: FieldInfo | None) -> str:
    if field is None or not isinstance(value, str) or get_origin(field.annotation) is not Literal:
        return ""
    return did_you_mean(value, [yaml_text(allowed) for allowed in get_args(field.annotation)])


def _find(location: Sequence[int | str]) -> tuple[type[BaseModel], FieldInfo | None]:
    """The innermost mapping at `location`, and the field there. For an item of a list, the field that contains it."""
    model: type[BaseModel] = Params
    field: FieldInfo | None = None
    for part in location:
        next_field = model.model_fields.get(str(part))
        field = next_field or field
        model = (inner_model(next_field) if next_field else None) or model
    return model, field


def inner_model(field: FieldInfo) -> type[BaseModel] | None:
    """The class of the mapping, or of the entries of the mapping, that a field holds; None for any other field."""
    candidates = (field.annotation, *get_args(field.annotation))
    return next((kind for kind in candidates if isinstance(kind, type) and issubclass(kind, BaseModel)), None)


_allowed: dict[int, str] = {}


def allowed_values(field: FieldInfo) -> str:
    """Describes the type and the range of a field, such as "an integer of at least 1", by pydantic's JSON schema."""
    if id(field) not in _allowed:  # the fields of the sections live as long as the process
        annotated: Any = Annotated[field.annotation, field]
        schema = TypeAdapter(annotated).json_schema()
        _allowed[id(field)] = _words(schema, schema.get("$defs", {}))
    return _allowed[id(field)]


def _words(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        schema = definitions[schema["$ref"].rpartition("/")[2]]
    if "anyOf" in schema:
        return " or ".join(_words(kind, definitions) for kind in schema["anyOf"])
    if "const" in schema:
        return str(schema["const"])
    if "enum" in schema:
        return "one of " + ", ".join(yaml_text(value) for value in schema["enum"])
    kind = schema.get("type")
    if kind == "array":
        each = f", each item {_words(schema['items'], definitions)}" if schema.get("items") else ""
        return f"a {'non-empty ' if schema.get('minItems') or schema.get('minLength') else ''}list{each}"
    if kind == "object":
        keys = f" with the keys {', '.join(schema['properties'])}" if "properties" in schema else ""
        return f"a mapping{keys}{' with at least one entry' if schema.get('minProperties') else ''}"
    limits = [text.format(schema[key]) for key, text in _LIMITS.items() if key in schema]
    word = "a non-empty string" if schema.get("minLength") else _WORDS[str(kind)]
    return " ".join([word, *([" and ".join(limits)] if limits else [])])


_WORDS = {
    "boolean": "true or false",
    "integer": "an integer",
    "number": "a number",
    "string": "a string",
    "null": "null",
}
_LIMITS = {
    "minimum": "of at least {:,}",
    "exclusiveMinimum": "above {:,}",
    "maximum": "at most {:,}",
    "exclusiveMaximum": "below {:,}",
    "maxLength": "of at most {:,} characters",
}
