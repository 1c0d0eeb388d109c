"""Other Python interpreters, in which variants compute: what they have, and what halfstep lends them.

Such an interpreter needs TensorFlow and what the task imports. What halfstep's processes import beside those is lent to
it, behind its own: to those that are timed the few packages that they import, to a training all packages of this
environment, because MLflow requires many. Packages are compiled, so its Python must have the minor version of this one.
With another minor version they must be installed there.
"""

from __future__ import annotations

import importlib.util
import json
import multiprocessing
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from multiprocessing import spawn
from pathlib import Path
from typing import Any

from halfstep.errors import one_line
from halfstep.system.commands import run_program
from halfstep.system.files import WORK_DIR, resolve_data_path
from halfstep.system.imports import ROOT, stages_package
from halfstep.system.supervision import handed_over
from halfstep.words.text import joined

# What processes of halfstep import beside TensorFlow, Keras and what these need.
_LENT = (
    *("_yaml", "annotated_types", "dateutil", "filelock", "greenlet", "pandas", "psutil", "pydantic", "pydantic_core"),
    *("pynvml", "ruamel", "scipy", "typing_inspection", "yaml"),
)
_DISTRIBUTIONS = (
    *("filelock", "greenlet", "nvidia-ml-py", "pandas", "psutil", "pydantic", "pyyaml", "ruamel.yaml", "scipy"),
)
_OF_TRAININGS = ("mlflow", "sqlalchemy")  # what those import further; each is the name of a distribution, too
_OLDEST = {"python": (3, 11), "tensorflow": (2, 18), "keras": (3, 8)}
_SHOWN = {"python": "Python", "tensorflow": "TensorFlow", "keras": "Keras", "numpy": "NumPy"}
_LOOK_S = 60.0
_LOOK = """
import importlib.metadata, importlib.util, json, platform, sys
versions = {"python": platform.python_version()}
for name in %r:
    found = list(importlib.metadata.distributions(name=name))
    versions.update({name: found[0].version} if found else {})
missing = [name for name in %r if importlib.util.find_spec(name) is None]
print(json.dumps([versions, [path for path in sys.path if path], missing]))
"""

_TRAIN = """
import os, sys
sys.path[0] = os.getcwd()
import halfstep.system.lent, runpy
runpy.run_module("%s", run_name="__main__", alter_sys=True)
"""
_LENT_FOLDERS = "HALFSTEP_LENT"  # environment variable of a process in another interpreter


@dataclass(frozen=True)
class Interpreter:
    """What is known of an interpreter.

    Attributes:
        path: of the program.
        versions: of `python`, `tensorflow`, `keras` and `numpy`, those that it has.
        search_path: folders in which it finds modules.
        missing: packages that it lacks and that halfstep's processes need.
    """

    path: Path
    versions: dict[str, str]
    search_path: tuple[str, ...]
    missing: tuple[str, ...]

    @property
    def can_borrow(self) -> bool:
        """Whether it can load packages that were compiled for this Python."""
        return _numbers(self.versions["python"])[:2] == sys.version_info[:2]


@cache
def look(python: str) -> Interpreter | str:
    """What an interpreter has; or why it cannot be run, as the end of a sentence.

    Args:
        python: path of the program, as the user gives it.
    """
    path = resolve_data_path(python).absolute()  # not resolved: the link in an environment says which one it is
    if not path.exists():
        return "which does not exist"
    if path.is_dir() or not os.access(path, os.X_OK):
        return "which is not a program; give the path of python in the other environment"
    ended = run_program(
        [str(path), "-c", _LOOK % (tuple(_SHOWN), (*_LENT, *_OF_TRAININGS))],
        _LOOK_S,
        {"PYTHONPATH": os.pathsep.join(_own_search_path())},
    )
    try:
        versions, search_path, missing = json.loads(ended.stdout)
    except ValueError:
        last = (ended.stderr.strip() or "no output").splitlines()[-1]
        return f"which does not answer as Python does ({one_line(last, 120)})"
    return Interpreter(path, versions, tuple(search_path), tuple(missing))


def problem_with(python: str, *, trains: bool) -> str | None:
    """Why variants cannot be timed in this interpreter, or trained where `trains`, as the end of a sentence."""
    interpreter = look(python)
    if isinstance(interpreter, str):
        return interpreter
    for name, oldest in _OLDEST.items():
        needed = f"{_SHOWN[name]} {'.'.join(map(str, oldest))} or newer"
        if name not in interpreter.versions:
            return f"which has no {_SHOWN[name]}; install {needed} in its environment"
        if _numbers(interpreter.versions[name]) < oldest:
            return f"which has {_SHOWN[name]} {interpreter.versions[name]}; halfstep needs {needed}"
    further = _OF_TRAININGS if trains else ()
    missing = [name for name in interpreter.missing if name in (*_LENT, *further)]
    if missing and not interpreter.can_borrow:
        return (
            f"which has no {joined(missing)}, and Python {interpreter.versions['python']} cannot use those of Python "
            f"{platform.python_version()}: run `{python} -m pip install {' '.join((*_DISTRIBUTIONS, *further))}`"
        )
    return None


def versions_of(python: str) -> dict[str, str]:
    """The releases of an interpreter that can be run."""
    return _runnable(python).versions


def _runnable(python: str) -> Interpreter:
    interpreter = look(python)
    assert isinstance(interpreter, Interpreter), interpreter
    return interpreter


def shown_versions(versions: dict[str, str]) -> str:
    """Releases as a person writes them: `Python 3.11.7, TensorFlow 2.20.0`."""
    return ", ".join(f"{shown} {versions[name]}" for name, shown in _SHOWN.items() if name in versions)


def variables_of(folder: str) -> dict[str, str]:
    """Environment variables of a process in another interpreter, with the folder that `lend` has filled; of `lent`."""
    return {"PYTHONPATH": f"{folder}/halfstep", _LENT_FOLDERS: f"{folder}/lent"}


def lend(folder: str) -> None:
    """Fills a folder with links to halfstep and to the packages that other interpreters may lack."""
    _link(Path(folder, "halfstep", "halfstep"), Path(__file__).parents[1])
    for name in _LENT:
        spec = importlib.util.find_spec(name)
        assert spec is not None, name
        package = Path(*spec.submodule_search_locations or [spec.origin or ""])
        for path in (package, package.with_name(f"{name}.libs")):  # the latter has what a wheel is linked to
            if path.exists():
                _link(Path(folder, "lent", path.name), path)


def train_in(python: str) -> None:
    """Goes on as the same stage in another interpreter, in place of this one. Returns in that interpreter alone."""
    if _LENT_FOLDERS in os.environ:
        return
    interpreter, folder = _runnable(python), str((WORK_DIR / "interpreter").absolute())
    lend(folder)
    if (ROOT / "stages").exists():  # a wheel has them in halfstep
        _link(Path(folder, "halfstep", "stages"), ROOT / "stages")
    variables = variables_of(folder)
    variables["PYTHONPATH"] = os.pathsep.join([variables["PYTHONPATH"], *_own_search_path()])
    if interpreter.can_borrow:
        variables[_LENT_FOLDERS] = os.pathsep.join(path for path in sys.path if path.endswith("-packages"))
    arguments = [str(interpreter.path), "-c", _TRAIN % f"{stages_package()}.train", *sys.argv[1:]]
    os.execve(interpreter.path, arguments, {**os.environ, **variables, **handed_over()})  # noqa: S606  no shell


def _link(link: Path, target: Path) -> None:
    """Makes a link, whatever was there; two trainings may do so at once."""
    link.parent.mkdir(parents=True, exist_ok=True)
    new = link.with_name(f"{link.name}.{os.getpid()}")
    new.symlink_to(target)
    new.replace(link)


@contextmanager
def started_in(python: str, folder: str) -> Iterator[None]:
    """In the block, `multiprocessing` starts this interpreter, which finds the modules of the folder beside its own."""
    interpreter, prepare, program = _runnable(python), spawn.get_preparation_data, spawn.get_executable()

    def prepared(name: str) -> dict[str, Any]:
        of_parent = {key: value for key, value in prepare(name).items() if not key.startswith("init_main")}
        own, lent = variables_of(folder).values()
        return of_parent | {"sys_path": [str(Path.cwd()), own, *interpreter.search_path, lent]}

    lend(folder)
    spawn.get_preparation_data = prepared
    multiprocessing.set_executable(str(interpreter.path))
    try:
        yield
    finally:
        spawn.get_preparation_data = prepare
        multiprocessing.set_executable(program)


def _own_search_path() -> list[str]:
    """The folders in which the user has Python look for modules."""
    return [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part and Path(part) != ROOT]


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
