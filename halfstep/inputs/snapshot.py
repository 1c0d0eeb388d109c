"""Detects edits that are made while a stage runs, which DVC would record as what the stage used.

DVC writes `dvc.lock` when a stage has ended, with the parameters and the files as they are then.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from halfstep.errors import ChangedInputsError, HalfstepError, printable
from halfstep.inputs import digests, own_code
from halfstep.inputs.head_digests import read_head_digests
from halfstep.params.loading import load
from halfstep.params.reading import PARAMS_FILE, parse_tree, read
from halfstep.system import files
from halfstep.system.imports import template
from halfstep.words.text import joined

_SHOWN = 3
_LONGEST = 40  # characters of a value
_OUTSIDE = {  # what the digest files are of
    files.SOURCE_FILE: "the images of data.path",
    files.MODEL_FILE: "the source of your model",
    files.TASK_FILE: "the source of your task, or what task.depends names",
}


class Snapshot:
    """The parameters and files that `dvc.yaml` lists for a stage, and its code, as they are now.

    Take it before the parameters are loaded.

    Args:
        stage: name of the stage in `dvc.yaml`.
        item: what stands for `${item.NAME}` in its parameters, by name.

    Raises:
        ChangedInputsError: the code is not that of the last `environment`, so DVC would record another one.
    """

    def __init__(self, stage: str, **item: str) -> None:
        listed = yaml.safe_load(template("dvc.yaml").read_bytes())["stages"][stage]
        keys, paths = [key for key in listed["params"] if isinstance(key, str)], listed["deps"]
        for name, value in item.items():
            keys, paths = ([text.replace(f"${{item.{name}}}", value) for text in texts] for texts in (keys, paths))
        self._stage, self._keys, self._files = stage, keys, paths
        self._params = PARAMS_FILE.absolute()  # a script's folder is the working folder while it trains
        self._status = _status(self._params)
        self._values = self._read()
        self._digests = {name: _digest(name) for name in self._files}
        self._code = own_code.contents(stage)
        path = files.KEYS / stage
        if path.is_file() and files.read_json(path) != own_code.key(self._code):
            raise ChangedInputsError(f"{stage}: its code has changed since `environment` ran; run `dvc repro`")

    def edited_parameters(self) -> str | None:
        """Which parameters have other values now, in words; None if none. Fast where the file is untouched."""
        if _status(self._params) == self._status:
            return None
        return _named(list(self._changed_parameters()))

    def require_unchanged(self, kept: str = "") -> None:
        """Checks that everything is as it was. `kept` says what becomes of what the stage has finished.

        Raises:
            ChangedInputsError: something is not; the message names it.
        """
        changed = [*self._changed_parameters(), *self._changed_files()] or list(_changed_sources(self._files))
        if text := _named(changed):
            raise ChangedInputsError(
                f"{self._stage}: {text} changed while the stage ran, so its result belongs to neither state"
                f"{f'; {kept}' if kept else ''}; run `dvc repro` again"
            )

    def _read(self) -> dict[str, Any]:
        tree = parse_tree(read(self._params), str(PARAMS_FILE))
        return {key: _at(tree, key) for key in self._keys}

    def _changed_parameters(self) -> Iterator[str]:
        try:
            values = self._read()
        except HalfstepError as error:
            yield f"params.yaml, which cannot be read any more ({error}),"
            return
        for key in self._keys:
            if (before := self._values[key]) != (now := values[key]):
                yield from _differences(key, before, now)

    def _changed_files(self) -> Iterator[str]:
        yield from (name for name in self._files if _digest(name) != self._digests[name])
        if (now := own_code.contents(self._stage)) != self._code:
            yield from sorted(name for name in {*now, *self._code} if now.get(name) != self._code.get(name))


def _changed_sources(names: list[str]) -> Iterator[str]:
    """Inputs outside of the pipeline that are not as the digest files say. A copy that the fleet made may lack them."""
    if read_head_digests() is not None:
        return
    settings = load()
    for path, compute in digests.INPUTS.items():
        if str(path) in names and path.is_file() and compute(settings) != files.read_json(path):
            yield _OUTSIDE[path]


def _at(tree: Any, key: str) -> Any:
    for name in key.split("."):
        tree = tree.get(name) if isinstance(tree, dict) else None
    return tree


def _differences(key: str, before: Any, now: Any) -> Iterator[str]:
    """The parameters below a key that differ, with both values."""
    if isinstance(before, dict) and isinstance(now, dict):
        for name in dict.fromkeys([*before, *now]):
            if before.get(name) != now.get(name):
                yield from _differences(f"{key}.{name}", before.get(name), now.get(name))
    else:
        yield f"{key} ({_shown(before)}, now {_shown(now)})"


def _shown(value: Any) -> str:
    return printable(json.dumps(value, default=str), _LONGEST)


def _named(changes: list[str]) -> str | None:
    """The first few of them, in words."""
    more = [f"{len(changes) - _SHOWN} more"] if len(changes) > _SHOWN else []
    return joined([*changes[:_SHOWN], *more]) if changes else None


def _digest(name: str) -> str | None:
    """Identifies a file by its content, and a folder of results by its manifests."""
    path = Path(name)
    if path.is_file():
        return files.sha256_file(path)
    if not path.is_dir():
        return None
    return own_code.of_files((str(part.relative_to(path)), part) for part in sorted(path.rglob(files.MANIFEST)))


def _status(path: Path) -> tuple[int, ...] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
