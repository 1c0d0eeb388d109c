"""The source files of the user's own model, task or script, found without importing them."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from halfstep.inputs.closure import Module, Name, modules, needed_files, source_file

USE_A_STEP = (
    "name the function of its training step in task.step, which compares the speed alone, or write a function for "
    "task.name (docs/tasks.md)"
)
OWN_MODEL = re.compile(r"(?P<module>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):(?P<function>[A-Za-z_]\w*)")


def module_file(module: str, root: Path, *, only_root: bool = False) -> Path | None:
    """Source file of a module in `root` or, unless `only_root`, on Python's path; None if there is no such file."""
    name = tuple(module.split("."))
    folder = _folder(name, root, only_root)
    return None if folder is None else source_file(folder, name)


def own_model_files(name: str, root: Path | None = None, *, only_root: bool = False) -> dict[str, Path]:
    """Source files of the user's own model or task: its module, and every module in the same folder that it imports.

    Args:
        name: value of `model.name` or `task.name`.
        root: the folder of `params.yaml`, or that of `task.path`; None for the working folder.
        only_root: do not search the module on Python's path.

    Returns:
        Paths by their name relative to the folder of the module's top package. Empty for models and tasks of halfstep.
    """
    match = OWN_MODEL.fullmatch(name)
    module: Name = tuple(match["module"].split(".")) if match else ()
    folder = _folder(module, root or Path.cwd(), only_root) if module else None
    return {} if folder is None else needed_files(modules(folder, module), module[0], folder)


def script_files(script: Path, folder: Path, *others: Path) -> dict[str, Path]:
    """A script, and every module that it imports, as those of `own_model_files`.

    Args:
        script: its file.
        folder: the first folder of its path, below which the script is.
        others: where its modules may be, too. A name is relative to the folder in which the module is found.
    """
    name = script.relative_to(folder).with_suffix("").parts
    return needed_files([*modules(folder, name[:-1]), Module(name, script)], name[0], folder, *others)


def _folder(name: Name, root: Path, only_root: bool = False) -> Path | None:
    folders = (root,) if only_root else (root, *map(Path, sys.path))
    return next((folder for folder in folders if source_file(folder, name)), None)
