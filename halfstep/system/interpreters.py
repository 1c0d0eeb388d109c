"""Other Python interpreters, in which the user's code runs: what they have, and how processes start in them.

Such an interpreter needs TensorFlow, Keras and what the user's code imports, and nothing else: halfstep's processes in
it import the standard library, NumPy, TensorFlow and Keras alone, and no package of halfstep's environment.
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
from halfstep.system.files import resolve_data_path
from halfstep.system.imports import ROOT
from halfstep.system.records import IS_ELSEWHERE

_OLDEST = {"python": (3, 10), "tensorflow": (2, 18, 1), "keras": (3, 8)}
_SHOWN = {"python": "Python", "tensorflow": "TensorFlow", "keras": "Keras", "numpy": "NumPy"}
TENSORFLOW_BUILDS = (
    "tensorflow",
    "tensorflow-cpu",
    "tensorflow-intel",
    "tensorflow-macos",
    "tensorflow-aarch64",
    "tf-nightly",
)
NO_TENSORFLOW = (
    f"the environment of halfstep ({sys.prefix}) has no TensorFlow: name the Python of your training, as in `halfstep "
    'judge --python .venv/bin/python train.py` (task.python), or install "halfstep[tensorflow]"'
)
_LOOK_S = 60.0
_LOOK = """
import importlib.metadata, json, platform, sys
versions = {"python": platform.python_version()}
for name, builds in {"tensorflow": %r, "keras": ["keras"], "numpy": ["numpy"]}.items():
    found = [item for build in builds for item in importlib.metadata.distributions(name=build)]
    versions.update({name: found[0].version} if found else {})
print(json.dumps([versions, [path for path in sys.path if path], platform.system() + " " + platform.machine()]))
"""


@dataclass(frozen=True)
class Interpreter:
    """What is known of an interpreter.

    Attributes:
        path: of the program.
        versions: of `python`, `tensorflow`, `keras` and `numpy`, those that it has.
        search_path: folders in which it finds modules.
        system: system and processor that it is built for, such as `Linux x86_64`.
    """

    path: Path
    versions: dict[str, str]
    search_path: tuple[str, ...]
    system: str


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
        [str(path), "-c", _LOOK % (TENSORFLOW_BUILDS,)], _LOOK_S, {"PYTHONPATH": os.pathsep.join(_own_search_path())}
    )
    try:
        versions, search_path, system = json.loads(ended.stdout)
    except ValueError:
        last = (ended.stderr.strip() or "no output").splitlines()[-1]
        return f"which does not answer as Python does ({one_line(last, 120)})"
    return Interpreter(path, versions, tuple(search_path), system)


def problem_with(python: str) -> str | None:
    """Why the user's code cannot run in this interpreter, as the end of a sentence."""
    interpreter = look(python)
    if isinstance(interpreter, str):
        return interpreter
    own = f"{platform.system()} {platform.machine()}"
    if interpreter.system != own:
        return f"which is built for {interpreter.system}, and halfstep runs on {own}: give one of the same build"
    for name, oldest in _OLDEST.items():
        needed = f"{_SHOWN[name]} {'.'.join(map(str, oldest))} or newer"
        line = f'`{os.path.normpath(interpreter.path)} -m pip install "{name}>={".".join(map(str, oldest))}"`'
        if name not in interpreter.versions:
            return f"which has no {_SHOWN[name]}: run {line}"
        if _numbers(interpreter.versions[name]) < oldest:
            instead = "" if name == "python" else f": run {line}"
            return f"which has {_SHOWN[name]} {interpreter.versions[name]}; halfstep needs {needed}{instead}"
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


def has_tensorflow() -> bool:
    """Whether the user's code can run in this environment."""
    return importlib.util.find_spec("tensorflow") is not None


def neighbour(folder: Path) -> Path | None:
    """The interpreter of the environment that is active, or else of the nearest `.venv` of a folder or above it."""
    active, conda = ([Path(os.environ[name])] if name in os.environ else [] for name in ("VIRTUAL_ENV", "CONDA_PREFIX"))
    above = [place / ".venv" for place in (folder, *folder.parents)]
    pythons = (place / "bin" / "python" for place in (*active, *above, *conda))
    return next((path for path in pythons if path.exists() and problem_with(str(path)) is None), None)


def variables_of(folder: str) -> dict[str, str]:
    """Environment variables of a process in another interpreter, with the folder that `link` has filled."""
    return {"PYTHONPATH": folder, IS_ELSEWHERE: "1"}


def link(folder: str) -> None:
    """Fills a folder with a link to halfstep alone: its environment and its checkout stay off the path."""
    path = Path(folder, "halfstep")
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.{os.getpid()}")
    new.symlink_to(Path(__file__).parents[1])
    new.replace(path)


@contextmanager
def started_in(python: str, folder: str) -> Iterator[None]:
    """In the block, `multiprocessing` starts this interpreter, which finds halfstep beside its own modules."""
    interpreter, prepare, program = _runnable(python), spawn.get_preparation_data, spawn.get_executable()

    def prepared(name: str) -> dict[str, Any]:
        of_parent = {key: value for key, value in prepare(name).items() if not key.startswith("init_main")}
        return of_parent | {"sys_path": [folder, *interpreter.search_path]}

    link(folder)
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
    return tuple(int(part) for part in version.split(".")[:3] if part.isdecimal())
