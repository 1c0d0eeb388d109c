"""Digests of inputs outside the pipeline: the user's images, and the source of the user's model or task.

DVC cannot depend on a folder that may be missing or that `params.yaml` names, so the stages depend on these digests.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from halfstep.errors import DataError, HalfstepError, one_line
from halfstep.inputs.contents import Contents
from halfstep.inputs.own_code import of_files
from halfstep.inputs.own_model import own_model_files, script_files
from halfstep.params.schema import DataParams, ModelParams, Params, TaskParams
from halfstep.system import files
from halfstep.system.files import TASK_FILE, TASK_INFO, resolve_data_path
from halfstep.system.interpreters import versions_of

_DEEPEST = 100  # Python's own limit, at which it gives a traceback, is about 900


def source_digest(data: DataParams) -> dict[str, Any]:
    """Identifies the images of `data.path` by the name and the content of each file: a copy has the same digest.

    Returns:
        `source`, and for `folder` the number of `files` and the `sha256` of their names and contents. Unchanged files
        are not read again. Hidden files and folders are ignored, as in `prepare`. What is removed or renamed meanwhile
        is left out: the next `dvc repro` finds another digest.

    Raises:
        DataError: a folder cannot be listed, or a file cannot be read for another reason than its permissions.
    """
    if data.source != "folder":
        return {"source": data.source}
    root = resolve_data_path(data.path)
    return {"source": data.source, **_listing_digest(root, Contents("data.path", root))}


def model_digest(model: ModelParams) -> dict[str, Any]:
    """Identifies the model by its name, and the user's own model also by the content of its source files.

    Returns:
        `name`, and for the user's own model the `files` and the `sha256` of their names and contents. Neither depends
        on modification times or on the folder of the checkout.
    """
    return {"name": model.name, **_source_digest(own_model_files(model.name))}


def task_digest(task: TaskParams, batch_size: int, seed: int) -> dict[str, Any]:
    """Identifies the task: `{"name": "images"}`, or the user's own task with all that its function is called with.

    Args:
        task: section `task` of the parameters.
        batch_size, seed: what the function is called with.

    Returns:
        `name`, and for the user's own task the `files` and the `sha256` of their names and contents, `arguments`,
        `batch_size`, `seed`, and `depends`: for each path of `task.depends` the `sha256` of a file, or the number of
        `files` in a folder and the `sha256` of their names and contents. Hidden files and what Python compiles are
        ignored.

    Raises:
        DataError: a path of `task.depends` does not exist, or cannot be read.
    """
    if task.uses_data_and_model:
        return {"name": task.name}
    return {
        "name": task.shown,
        **_source_digest(task_files(task)),
        "arguments": task.arguments,
        "batch_size": batch_size,
        "seed": seed,
        "depends": {path: _path_digest(path) for path in task.depends},
    }


def tasks_digest(params: Params) -> dict[str, Any]:
    """Identifies the task as `task_digest` does, and of each variant the source in another folder, and the releases
    of another interpreter."""
    digest = task_digest(params.task, params.train.batch_size, params.train.seeds[0])
    others = {key: _source_digest(task_files(task)) for key, task in params.tasks.items() if task != params.task}
    pythons = {name: params.variants[name].python for name in params.train.variants}
    releases = {f"variants.{name}.python": versions_of(python) for name, python in pythons.items() if python}
    return digest | others | releases | _changed_reads()


def _changed_reads() -> dict[str, Any]:
    """The files that a script reads and that have changed since `prepare` saw it read them, then or now.

    One that has changed once stays listed: without it, a later `prepare`, which sees the new file, would be followed by
    another.
    """
    if not (TASK_INFO.is_file() or TASK_FILE.is_file()):
        return {}
    try:
        seen = files.read_json(TASK_INFO).get("reads") or {}
    except HalfstepError:  # `prepare` has not run, or says what is wrong with its file
        seen = {}
    before = files.read_json(TASK_FILE).get("reads", {}) if TASK_FILE.is_file() else {}
    now = {path: _read_digest(path) for path in {**seen, **before}}
    changed = {path: digest for path, digest in now.items() if path in before or digest != seen[path]}
    return {"reads": dict(sorted(changed.items()))} if changed else {}


def _read_digest(path: str) -> str:
    """The sha256 of a file; empty if it cannot be read."""
    try:
        return str(_path_digest(path)["sha256"])
    except (HalfstepError, OSError):
        return ""


def task_files(task: TaskParams) -> dict[str, Path]:
    """Source files of the user's own function or script, as `own_model_files` returns them."""
    if task.script is not None:
        of_score = own_model_files(task.score or "", task.script_path.parent, only_root=True)
        return script_files(task.script_path, *task.import_folders) | of_score
    return own_model_files(task.name, task.module_folder, only_root=task.path is not None)


def own_sources(params: Params) -> list[tuple[str, Path]]:
    """Source files of the user's own model, or of the task under each variant, with the parameter that names them."""
    if params.task.uses_data_and_model:
        return [("model.name", path) for path in own_model_files(params.model.name).values()]
    subject = "task.name" if params.task.script is None else "task.script"
    return [(subject, path) for task in params.tasks.values() for path in task_files(task).values()]


def prepare_inputs_digest(params: Params) -> dict[str, Any]:
    """Identifies what `prepare` reads: the images, or the variants and seeds that it tries a task or script with.

    What was prepared for a training serves without one, too.
    """
    if params.task.uses_data_and_model:
        return source_digest(params.data)
    seeds = params.train.seeds if params.task.script is not None else params.train.seeds[:1]
    digest = {
        "source": None,
        "baseline": params.compare.baseline,
        "variants": {name: params.variants[name].timed_as for name in params.train.variants},
        "seeds": list(seeds),
        "trains": True,
    }
    is_prepared = files.SOURCE_FILE.is_file() and files.read_json(files.SOURCE_FILE) == digest
    return digest | {"trains": params.train.epochs != 0 or is_prepared}


def _source_digest(paths: dict[str, Path]) -> dict[str, Any]:
    if not paths:
        return {}
    return {"files": sorted(paths), "sha256": of_files(sorted(paths.items()))}


def _path_digest(name: str) -> dict[str, Any]:
    path = resolve_data_path(name)
    if path.is_dir():
        return _listing_digest(path, Contents("task.depends"))
    try:
        with path.open("rb"), Contents("task.depends") as contents:  # to open it tells why it cannot be read
            return {"sha256": contents.of(path.parent, [path.name])[path.name]}
    except OSError as error:
        raise _unreadable("task.depends", error) from error


def _listing_digest(root: Path, contents: Contents) -> dict[str, Any]:
    """Number of files below a folder, and a digest of their names and contents."""
    listing = hashlib.sha256()
    count = 0
    try:
        for line in _listing(root, contents):
            listing.update(line.encode("utf-8", "surrogateescape"))
            count += 1
    except OSError as error:
        raise _unreadable(contents.label, error) from error
    return {"files": count, "sha256": listing.hexdigest()}


def _listing(root: Path, contents: Contents) -> Iterator[str]:
    refuse = functools.partial(_refuse_unless_removed, root, contents.label)
    with contents:
        for folder, names in visible_files(root, refuse):
            digests = contents.of(folder, names)
            above = folder.relative_to(root)
            yield from (f"{(above / name).as_posix()}\0{digests[name]}\n" for name in sorted(digests))


def visible_files(root: Path, on_error: Callable[[OSError], object] | None = None) -> Iterator[tuple[Path, list[str]]]:
    """Each folder below `root` with the names of its files, without hidden ones and what Python compiles.

    Raises:
        DataError: folders are nested so deeply that a program must have made them.
    """
    top = str(root).count(os.sep)
    for folder, folders, names in os.walk(root, onerror=on_error):
        if folder.count(os.sep) - top > _DEEPEST:
            raise DataError(f"{one_line(str(root), 200)} has more than {_DEEPEST} folders in each other; remove them")
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name != "__pycache__")
        yield Path(folder), [name for name in names if not name.startswith(".")]


def _refuse_unless_removed(root: Path, parameter: str, error: OSError) -> None:
    if not _is_removed(error) or error.filename == str(root):
        raise _unreadable(parameter, error) from error


def _unreadable(parameter: str, error: OSError) -> DataError:
    advice = "run `dvc repro` again" if _is_removed(error) else "change its permissions, or move it out of the folder"
    return DataError(f"{parameter}: {error.filename!r} cannot be read ({error.strerror}); {advice}")


def _is_removed(error: OSError) -> bool:
    return isinstance(error, FileNotFoundError | NotADirectoryError)


# What the stages depend on outside of the pipeline, by the file that has its digest. An own task uses no `data` and no
# `model`.
INPUTS: Mapping[Path, Callable[[Params], dict[str, Any]]] = {
    files.SOURCE_FILE: prepare_inputs_digest,
    files.MODEL_FILE: lambda params: model_digest(params.model) if params.task.uses_data_and_model else {"name": None},
    files.TASK_FILE: tasks_digest,
}
