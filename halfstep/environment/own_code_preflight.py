"""Checks the user's own functions that `params.yaml` names, without importing them: they may import TensorFlow."""

from __future__ import annotations

import ast
import math
import os
import re
import symtable
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from halfstep.errors import one_line
from halfstep.inputs.closure import parse_source, parsed, source_of
from halfstep.inputs.own_model import OWN_MODEL, module_file, script_files
from halfstep.params.margin import score_name_problem
from halfstep.params.rules import did_you_mean
from halfstep.params.schema import TaskParams
from halfstep.system import files

LONGEST_VALUE = 300  # characters of a value in a message: what to do comes after it
_KERNEL_FOLDERS = ("/proc", "/sys")
OF_THE_KERNEL = "part of /proc or /sys, or is /dev: its contents are not fixed"
_NEXT_TO_PARAMS = "next to params.yaml or among installed packages"
# What halfstep passes to the function of a task, and where else the user sets it.
_PASSED = {
    "batch_size": "set train.batch_size instead",
    "seed": "set train.seeds instead",
    "directory": "remove it, the function gets the folder that prepare() of its module fills",
}


class _UnusableError(Exception):
    """A module that does not define the function; the message is the line to report."""


def model_problems(name: str) -> Iterator[str]:
    """One line if the function of the user's own model does not exist."""
    match = OWN_MODEL.fullmatch(name)
    assert match is not None
    try:
        _require_function(f"model.name is '{name}'", match, Path.cwd(), _NEXT_TO_PARAMS)
    except _UnusableError as error:
        yield str(error)


def task_problems(task: TaskParams, path_key: str = "task.path") -> Iterator[str]:
    """One line for each thing that the user's own task names and that cannot be used.

    Args:
        task: section `task` of the parameters.
        path_key: the parameter that names its folder.
    """
    yield from _depends(task.depends)
    if task.script is not None:
        yield from _script(task)
        return
    yield from _reserved(task.keywords)
    folder_problem = _folder(task, path_key)
    match = OWN_MODEL.fullmatch(task.name)
    if folder_problem:
        yield folder_problem
    elif len(task.name) > LONGEST_VALUE:
        yield f"task.name has {len(task.name)} characters; it must be shorter than {LONGEST_VALUE}"
    elif match is None:
        allowed = "it must be images, or package.module:function"
        yield f"task.name is '{task.name}'; {allowed}{did_you_mean(task.name, ['images'])}"
    else:
        yield from _task_function(task, match, path_key)


def _script(task: TaskParams) -> Iterator[str]:
    """One line if the script cannot be run."""
    path, subject = task.script_path, f"task.script is '{_shown(task.script_name)}'"
    if task.folder is not None and not os.path.isdir(task.script_folder):  # noqa: PTH112  the same
        yield f"task.folder is '{_shown(task.folder)}', which is not a folder: name the one in which the script runs"
        return
    if not os.path.isfile(path):  # noqa: PTH113  Path.is_file raises an error for a long name
        place = "" if task.script_module is None else f" as {path}: task.folder is the one from which `-m` finds it"
        yield f"{subject}, which {'is not a file' if os.path.lexists(path) else 'does not exist'}{place}"
        return
    try:
        tree = parse_source(source_of(path), path.name)
    except (OSError, SyntaxError) as error:
        yield f"{subject}, which is not valid Python: {error}"
        return
    trees = {
        name: module for name, file in script_files(path, *task.import_folders).items() if (module := parsed(file))
    }
    if problem := _keras_2(trees):
        yield f"{subject}; {problem}"
    calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    fits = [name.lineno for name in calls if isinstance(name, ast.Attribute) and name.attr == "fit"]
    asks = [name.lineno for name in calls if isinstance(name, ast.Name) and name.id == "input"]
    if asks and min(asks) < min(fits, default=math.inf):
        yield (
            f"{subject}, which calls input() in line {min(asks)}, before fit: halfstep runs it several times, and "
            "nobody answers"
        )
    for own in ("stages", "halfstep"):
        beside = (path.parent / f"{own}.py", path.parent / own / "__init__.py")
        if any(module_path.exists() for module_path in beside) and path.parent != Path.cwd():
            yield f"{subject}; beside it is a module named '{own}', as halfstep's own package is: rename it"
    if task.score is not None:
        yield from _score(task, task.score)


def _keras_2(trees: Mapping[str, ast.Module]) -> str | None:
    """Where a script asks for Keras 2; None if it does not."""
    for name, tree in trees.items():
        for node in ast.walk(tree):
            imported = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            imported += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            if any(module.split(".")[0] == "tf_keras" for module in imported) or _is_switch(node):
                line = getattr(node, "lineno", 0)
                return f"{name}, line {line}, asks for Keras 2 (tf_keras), and halfstep measures Keras 3"
    return None


def _is_switch(node: ast.AST) -> bool:
    """Whether a line makes TensorFlow use Keras 2, by its environment variable."""
    if not isinstance(node, ast.Assign) or "TF_USE_LEGACY_KERAS" not in ast.unparse(node.targets[0]):
        return False
    return isinstance(node.value, ast.Constant) and str(node.value.value).lower() in ("1", "true")


def _score(task: TaskParams, score: str) -> Iterator[str]:
    """One line if the function that scores a script's models cannot be used."""
    subject, match = f"task.score is '{_shown(score)}'", OWN_MODEL.fullmatch(score)
    if match is None and ":" in score:
        yield f"{subject}; it must be module:function, a module in the folder of task.script, or a compiled metric"
    elif match is None:
        return  # the name of a metric, which `prepare` looks for
    elif match["module"] == task.script_path.stem:
        yield f"{subject}, in the script itself; give a function of another module, which can be imported"
    elif problem := score_name_problem(match["function"]):
        yield f"{subject}; {problem}"
    else:
        try:
            place = "in the folder of task.script"
            _require_function(subject, match, task.script_path.parent, place, only_root=True)
        except _UnusableError as error:
            yield str(error)


def _task_function(task: TaskParams, match: re.Match[str], path_key: str) -> Iterator[str]:
    place = _NEXT_TO_PARAMS if task.path is None else f"in {path_key}, which is '{_shown(task.path)}'"
    try:
        only_root = task.path is not None
        _require_function(f"task.name is '{task.name}'", match, task.module_folder, place, only_root=only_root)
    except _UnusableError as error:
        yield str(error)


def _require_function(subject: str, match: re.Match[str], folder: Path, place: str, *, only_root: bool = False) -> None:
    """Checks that a module defines a function; what the function takes shows when it is called.

    Raises:
        _UnusableError: there is no such module, it is not valid Python, or it does not define the function.
    """
    function, path = match["function"], module_file(match["module"], folder, only_root=only_root)
    if path is None:
        raise _UnusableError(f"{subject}; there is no module '{match['module']}' {place}")
    try:
        tree = parse_source(path.read_bytes(), path.name)
        names = _top_level_names(tree)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # the last two: too many nested brackets
        raise _UnusableError(f"{subject}; {path.name} is not valid Python: {error}") from error
    if function not in names and not _defines_unseen_names(tree):
        hint = did_you_mean(function, names)
        raise _UnusableError(f"{subject}; {path.name} does not define '{function}'{hint}")


def _top_level_names(tree: ast.Module) -> list[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the compiler, about the user's code
        table = symtable.symtable(ast.unparse(tree), "module", "exec")
    return [symbol.get_name() for symbol in table.get_symbols() if symbol.is_assigned() or symbol.is_imported()]


def _defines_unseen_names(tree: ast.Module) -> bool:
    """Whether a module has names that its text does not contain."""
    star = any(isinstance(node, ast.ImportFrom) and node.names[0].name == "*" for node in ast.walk(tree))
    return star or any(isinstance(node, ast.FunctionDef) and node.name == "__getattr__" for node in tree.body)


def _reserved(arguments: Iterable[str]) -> Iterator[str]:
    for name, advice in _PASSED.items():
        if name in arguments:
            yield f"task.arguments contains '{name}', which halfstep passes to the function itself; {advice}"


def _folder(task: TaskParams, path_key: str) -> str | None:
    if task.path is None or os.path.isdir(task.module_folder):  # noqa: PTH112  Path.is_dir raises an error for a long name
        return None
    problem = "is not a folder" if os.path.lexists(task.module_folder) else "does not exist"
    return f"{path_key} is '{_shown(task.path)}', which {problem}; it must be the folder that holds the module"


def _depends(paths: Iterable[str]) -> Iterator[str]:
    results = [folder.resolve() for folder in (files.PREPARED, files.TRAIN, files.PROFILE, files.SERVE, files.COMPARE)]
    for name in paths:
        path, subject = files.resolve_data_path(name), f"task.depends contains '{_shown(name)}', which"
        if not os.path.exists(path):  # noqa: PTH110  Path.exists raises an error for a long name
            yield f"{subject} does not exist; correct or remove it"
        elif is_of_the_kernel(path):
            yield f"{subject} is {OF_THE_KERNEL}; remove it"
        elif not path.is_file() and not path.is_dir():
            yield f"{subject} is neither a file nor a folder; remove it"
        elif any(folder.is_relative_to(path.resolve()) or path.resolve().is_relative_to(folder) for folder in results):
            yield f"{subject} contains results of the pipeline; list only what your task reads"


def is_of_the_kernel(path: Path) -> bool:
    """Whether a file or folder shows the state of the machine: its contents change, or have no end."""
    resolved = path.resolve()
    return resolved == Path("/dev") or any(resolved.is_relative_to(folder) for folder in _KERNEL_FOLDERS)


def _shown(text: str) -> str:
    return one_line(text, LONGEST_VALUE)
