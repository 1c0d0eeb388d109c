"""Reads the text of `params.yaml` as a tree, with the parser that DVC uses, and refuses what takes long to read."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer
from ruamel.yaml.constructor import SafeConstructor
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node

from halfstep.errors import ParameterError, printable
from halfstep.params.schema import Params

PARAMS_FILE = Path("params.yaml")
MAX_BYTES = 32 * 1024  # it is read in half a second
MAX_DEPTH = 20
MAX_INTEGER_BITS = 1000  # Python neither prints nor converts integers of any size

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
        ParameterError: the text is not YAML, is too large, or is not a mapping.
    """
    _check_length(text.encode("utf-8", "surrogatepass"), name)
    try:
        with warnings.catch_warnings():  # an anchor that is defined twice is not an error
            warnings.simplefilter("ignore")
            tree = _loader().load(text)
    except Exception as error:  # the library raises many exceptions besides its own
        mark = getattr(error, "problem_mark", None)
        place = f" at or after line {mark.line + 1}" if mark else ""
        raise ParameterError(f"{name} is not valid YAML{place}: {_problem(error)}") from None
    if not isinstance(tree, dict):
        raise ParameterError(f"{name} must be a mapping with the sections {', '.join(Params.model_fields)}")
    return tree


def _problem(error: Exception) -> str:
    problem = getattr(error, "problem", None) or (str(error).splitlines() or [type(error).__name__])[0]
    is_half = problem.startswith("but ")  # "expected a single document in the stream" "but found another document"
    return f"{getattr(error, 'context', '')} {problem}" if is_half else problem


def dotted(location: Sequence[int | str]) -> str:
    """The dotted name of a parameter, such as `train.seeds[0]`."""
    parts = [f"[{part}]" if isinstance(part, int) else f".{printable(part, 80)}" for part in location]
    return "".join(parts).lstrip(".")


def _loader() -> YAML:
    """As DVC reads the file, with stricter rules."""
    loader = YAML(typ="safe", pure=True)
    loader.Composer, loader.Constructor = _Composer, _Constructor
    return loader


class _Composer(Composer):
    """Rejects keys that are given twice or are not strings, and deep nesting."""

    _depth = 0

    def compose_node(self, parent: Node | None, index: Any) -> Any:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise _error(f"more than {MAX_DEPTH} levels of nesting", self.parser.peek_event())
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def compose_mapping_node(self, anchor: Any) -> MappingNode:
        node: MappingNode = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            if str(key.tag) not in _KEY_TAGS:
                raise _error("a key is not a string; quote it", key)
            if key.value in seen:
                raise _error(f"'{printable(key.value, 80)}' is given twice", key)
            seen.add(key.value)
        return node


class _Constructor(SafeConstructor):
    """Rejects integers of any size, and says which value is not valid."""

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        try:
            value = super().construct_object(node, deep)
        except YAMLError:
            raise
        except Exception:  # the library does not wrap the exceptions of int(), datetime and others
            kind = str(node.tag).rpartition(":")[2]
            raise _error(f"{printable(str(node.value), 40)} is not a valid {kind}", node) from None
        if isinstance(value, int) and value.bit_length() > MAX_INTEGER_BITS:
            raise _error(f"{printable(str(node.value), 40)} is too large for an integer", node)
        return value


def _error(problem: str, place: Any) -> MarkedYAMLError:
    """The error for a node or an event."""
    return MarkedYAMLError(problem=problem, problem_mark=place.start_mark)
