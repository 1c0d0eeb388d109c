"""Reads the text of `params.yaml` as a tree, and refuses what DVC and halfstep would read differently.

DVC reads the file with ruamel.yaml, by the rules of YAML 1.2; halfstep with PyYAML, by those of YAML 1.1.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from stages.errors import ParameterError, printable
from stages.params.schema import NUMBER, Params

PARAMS_FILE = Path("params.yaml")
MAX_BYTES = 32 * 1024  # PyYAML reads it in half a second
MAX_VALUES = 10_000
MAX_DEPTH = 20
MAX_INTEGER_BITS = 1000  # Python neither prints nor converts integers of any size

Location = tuple[int | str, ...]

_KEY_TAGS = ("tag:yaml.org,2002:str", "tag:yaml.org,2002:merge")  # the second is `<<`


def read(path: Path = PARAMS_FILE) -> str:
    """Reads the text of a parameter file.

    Raises:
        ParameterError: the file is missing, too large, or not a text file.
    """
    if path.exists() and not path.is_file():
        raise ParameterError(f"{path} cannot be read (it is not a regular file): it must be a UTF-8 text file")
    try:
        with path.open("rb") as stream:
            content = stream.read(MAX_BYTES + 1)
        _check_length(content, str(path))
        return content.decode("utf-8-sig").replace("\r\n", "\n")
    except FileNotFoundError as error:
        raise ParameterError(
            f"{path} is missing: run from the root of the project, or `git checkout {path}`"
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ParameterError(f"{path} cannot be read ({error}): it must be a UTF-8 text file") from error


def _check_length(content: bytes, name: str) -> None:
    if len(content) > MAX_BYTES:
        limit = f"{MAX_BYTES // 1024} KiB"
        raise ParameterError(f"{name} has more than {limit}, the largest size allowed; remove what is not a parameter")


def parse_tree(text: str, name: str) -> dict[str, Any]:
    """Parses the text of a parameter file, which the messages call `name`.

    Raises:
        ParameterError: the text is not YAML, is too large, is not a mapping, or contains values that DVC reads
            differently: one line for each.
    """
    _check_length(text.encode("utf-8", "surrogatepass"), name)
    try:
        root, tree = _load(text)
        dvc_tree = _load_as_dvc(text)
    except Exception as error:  # the two libraries raise many exceptions besides their own
        mark = getattr(error, "problem_mark", None)
        place = f" at or after line {mark.line + 1}" if mark else ""
        raise ParameterError(f"{name} is not valid YAML{place}: {_problem(error)}") from None
    if not isinstance(tree, dict):
        raise ParameterError(f"{name} must be a mapping with the sections {', '.join(Params.model_fields)}")
    if lines := [f"{name}{_explain(root, *found)}" for found in _differences(tree, dvc_tree)]:
        raise ParameterError(*lines)
    task = tree.get("task")
    if isinstance(task, dict) and "arguments" in task:
        task["arguments"] = _with_numbers(task["arguments"], dvc_tree["task"]["arguments"])
    return tree


def _problem(error: Exception) -> str:
    problem = getattr(error, "problem", None) or (str(error).splitlines() or [type(error).__name__])[0]
    is_half = problem.startswith("but ")  # "expected a single document in the stream" "but found another document"
    return f"{getattr(error, 'context', '')} {problem}" if is_half else problem


def dotted(location: Sequence[int | str]) -> str:
    """The dotted name of a parameter, such as `train.seeds[0]`."""
    parts = [f"[{part}]" if isinstance(part, int) else f".{printable(part, 80)}" for part in location]
    return "".join(parts).lstrip(".")


class _StrictLoader(yaml.SafeLoader):
    """Rejects duplicate keys, of which PyYAML keeps the last one, keys that are not strings, and deep nesting."""

    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            event: yaml.Event = self.peek_event()  # type: ignore[no-untyped-call]
            raise _error(f"more than {MAX_DEPTH} levels of nesting", event)
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            if key.tag not in _KEY_TAGS:
                raise _error("a key is not a string; quote it", key)
            if key.value in seen:
                raise _error(f"'{printable(key.value, 80)}' is given twice", key)
            seen.add(key.value)
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            value = super().construct_object(node, deep)
            str(node.value if isinstance(node, yaml.ScalarNode) else "").encode()  # half of a character: an error
        except yaml.YAMLError:
            raise
        except Exception:  # PyYAML does not wrap the exceptions of int(), datetime and others
            kind = node.tag.rpartition(":")[2]
            raise _error(f"{printable(str(node.value), 40)} is not a valid {kind}", node) from None
        if isinstance(value, int) and value.bit_length() > MAX_INTEGER_BITS:
            raise _error(f"{printable(str(node.value), 40)} is too large for an integer", node)
        return value


def _error(problem: str, place: Any) -> yaml.MarkedYAMLError:
    """The error for a node or an event."""
    return yaml.MarkedYAMLError(problem=problem, problem_mark=place.start_mark)


def _load(text: str) -> tuple[yaml.Node | None, Any]:
    loader = _StrictLoader(text)
    root = loader.get_single_node()
    if root is None:
        return None, None
    if _expanded_size(root, {}) > MAX_VALUES:
        raise _error(f"more than {MAX_VALUES:,} values, with those that aliases repeat", root)
    return root, loader.construct_document(root)


def _expanded_size(node: yaml.Node, sizes: dict[yaml.Node, int]) -> int:
    """The number of values below a node, each alias counted as a copy. An alias is defined before it is used."""
    if node in sizes:
        if not sizes[node]:
            raise _error("a value contains itself", node)
        return sizes[node]
    sizes[node] = 0
    pairs = node.value if isinstance(node, yaml.CollectionNode) else []
    children = [child for item in pairs for child in (item if isinstance(item, tuple) else (item,))]
    sizes[node] = 1 + sum(_expanded_size(child, sizes) for child in children)
    return sizes[node]


def _load_as_dvc(text: str) -> Any:
    from ruamel.yaml import YAML

    with warnings.catch_warnings():  # an anchor that is defined twice is not an error
        warnings.simplefilter("ignore")
        return YAML(typ="safe").load(text)


def _differences(ours: Any, dvc: Any, location: Location = ()) -> Iterator[tuple[Location, Any, Any]]:
    if isinstance(ours, dict) and isinstance(dvc, dict):
        for key, value in ours.items():
            if key in dvc:
                yield from _differences(value, dvc[key], (*location, key))
            else:
                yield (*location, key), key, next((other for other in dvc if other not in ours), None)
    elif isinstance(ours, list) and isinstance(dvc, list) and len(ours) == len(dvc):
        for index, pair in enumerate(zip(ours, dvc, strict=True)):
            yield from _differences(*pair, (*location, index))
    elif not _same(ours, dvc):
        yield location, ours, dvc


def _with_numbers(ours: Any, dvc: Any) -> Any:
    """Replaces texts that DVC reads as numbers, such as 1e-05, which it writes: no type is declared for arguments."""
    if isinstance(ours, dict):
        return {key: _with_numbers(value, dvc[key]) for key, value in ours.items()}
    if isinstance(ours, list):
        return [_with_numbers(*pair) for pair in zip(ours, dvc, strict=True)]
    return dvc if isinstance(ours, str) and isinstance(dvc, float) else ours


def _same(ours: Any, dvc: Any) -> bool:
    if isinstance(dvc, float) and isinstance(ours, str) and NUMBER.fullmatch(ours):
        return float(ours) == dvc  # 1e-05, which DVC writes: the schema reads it as a number, too
    if isinstance(dvc, float) and isinstance(ours, float) and math.isnan(dvc):
        return math.isnan(ours)
    return type(ours) is type(dvc) and bool(ours == dvc)


def _explain(root: yaml.Node | None, location: Location, ours: Any, dvc: Any) -> str:
    node = _node_at(root, location)
    line = f" line {node.start_mark.line + 1}" if node else ""
    written = f" is {printable(node.value, 80)}" if isinstance(node, yaml.ScalarNode) else ""
    dvc_value, own_value = _shown(dvc), _shown(ours)
    return f"{line}: {dotted(location)}{written}, which DVC reads as {dvc_value} and halfstep as {own_value}; " + (
        "quote it" if location[-1:] == (ours,) and not isinstance(dvc, str) else f"write {dvc_value} or {own_value}"
    )


def _shown(value: Any) -> str:
    text = str(value).lower() if isinstance(value, bool) else "null" if value is None else repr(value)
    return printable(text, 80)


def _node_at(root: yaml.Node | None, location: Location) -> yaml.Node | None:
    """The node of a value; that of the next mapping or list around it if there is none."""
    node = root
    for part in location:
        if isinstance(node, yaml.MappingNode):
            following = next((value for key, value in node.value if key.value == part), None)
        else:
            following = node.value[part] if isinstance(node, yaml.SequenceNode) else None
        if following is None:
            break
        node = following
    return node
