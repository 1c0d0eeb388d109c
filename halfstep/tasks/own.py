"""Your own task: imports the function that `task.name` names, and calls it."""

from __future__ import annotations

import importlib
import inspect
import multiprocessing
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from halfstep.errors import TaskError
from halfstep.params.schema import TaskParams
from halfstep.system import files, sealing
from halfstep.tasks import user_code
from halfstep.tasks.output import output_to
from halfstep.tasks.task import Task

PREPARE = "prepare"  # name of the function beside the task's that fills `data/prepared`, where there is one
DIRECTORY = "directory"  # keyword for that folder


def build(task: TaskParams, *, batch_size: int, seed: int, quiet: bool = False) -> Task:
    """Calls the task's function, under the current dtype policy.

    With `quiet`, what it prints goes to a file below `.halfstep/task`: another process has shown it.

    Raises:
        TaskError: the function cannot be called, raises, or does not return a task.
    """
    subject = task.subject
    keywords = {"batch_size": batch_size, "seed": seed, **task.keywords}
    with user_code.explained(subject, "cannot be built", TaskError):
        function = _function(task)
        if DIRECTORY in inspect.signature(function).parameters:
            keywords[DIRECTORY] = files.PREPARED.absolute()
        _require_keywords(function, keywords)
        if multiprocessing.parent_process() is not None:  # else the stage itself, which seals its training
            user_code.seal([task.module_folder])
        log = files.WORK_DIR / "task" / f"{multiprocessing.current_process().name}.txt"
        with output_to(log.absolute()) if quiet else nullcontext():
            result = function(**keywords)
        sealing.reached_fit()
    if not isinstance(result, Task):
        raise TaskError(f"{subject} returned {type(result).__name__}; it must return a halfstep.tasks.Task")
    return result


def prepare(task: TaskParams, directory: Path) -> bool:
    """Calls the function `prepare(directory, **arguments)` in the task's module, and returns whether there is one.

    Raises:
        TaskError: it raises, or does not take the arguments.
    """
    with user_code.explained(f"{task.subject}: {PREPARE}", "failed", TaskError):
        function = getattr(_module(task), PREPARE, None)
        if not callable(function):
            return False
        _require_keywords(function, {DIRECTORY: directory, **task.keywords})
        function(directory=directory, **task.keywords)
    return True


def _module(task: TaskParams) -> Any:
    folder = str(task.module_folder.absolute())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return importlib.import_module(task.name.partition(":")[0])


def _function(task: TaskParams) -> Callable[..., Any]:
    name = task.name.partition(":")[2]
    function: Callable[..., Any] | None = getattr(_module(task), name, None)
    if function is None:
        raise TypeError(f"the module does not define {name}")
    if not callable(function):
        raise TypeError(f"{name} is {type(function).__name__}; it must be a function")
    return function


def _require_keywords(function: Callable[..., Any], keywords: dict[str, Any]) -> None:
    try:
        signature = inspect.signature(function)
        signature.bind(**keywords)
    except ValueError:  # of a function in C
        return
    except TypeError as error:
        called = ", ".join(f"{name}=" for name in keywords)
        raise TypeError(f"{function.__name__}{signature} cannot be called with {called} ({error})") from None
