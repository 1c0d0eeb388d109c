"""Runs a script that has failed as its user would, to tell whether halfstep is the cause."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from halfstep.inputs import notebook
from halfstep.params.schema import TaskParams
from halfstep.system import sealing
from halfstep.system.imports import ROOT

_MOST_S = 600.0
# Its arguments: the root of this project, the folder of the pipeline, a dtype policy, the file for what the script
# raises, the folders of the script's modules, -m or nothing, the script and its command line. It ends after the first
# step of its first call of `fit`. Of halfstep's code it uses what leaves the user's files as they were, and more when
# the script has failed.
_PROGRAM = """
import inspect, os, pathlib, runpy, sys, tempfile
root, place, policy, raised, folders, flag, script, *sys.argv[1:] = sys.argv[1:]
sys.path.insert(0, root)
from halfstep.system import native_writes, sealing, trackers
sys.argv[0], sys.path[:2] = script, folders.split(os.pathsep)
import keras
sealing.seal(pathlib.Path(place), folders.split(os.pathsep))
native_writes.report()
tempfile.tempdir = os.path.dirname(raised)
trackers.silenced().__enter__()
tempfile.tempdir = None
fitting = next(kind for kind in keras.Model.__mro__ if "fit" in vars(kind))
own = fitting.fit
def one_step(*arguments, **named):
    call = inspect.signature(own).bind(*arguments, **named)
    call.apply_defaults()
    call.arguments |= dict(epochs=call.arguments["initial_epoch"] + 1, steps_per_epoch=1, validation_steps=1)
    own(*call.args, **call.kwargs)
    os._exit(0)
fitting.fit = one_step
if policy != "float32":
    keras.config.set_dtype_policy(policy)
try:
    if flag:
        runpy.run_module(script, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(script, run_name="__main__")
except BaseException as error:
    sys.path.insert(0, root)
    os.chdir(os.path.dirname(raised))
    from halfstep.tasks.user_code import describe
    with open(raised, "w", encoding="utf-8") as stream:
        stream.write(describe(error))
"""


def raised_in_plain_python(task: TaskParams, policy: str, logs: Path) -> str | None:
    """What a script raises before or in the first step of `fit` in plain Python, in one line; None if nothing.

    None also for those with a loop of their own, which would train.

    Args:
        task: whose script has failed.
        policy: Keras's dtype policy at its start.
        logs: the folder of what scripts print, where the code of a notebook is.
    """
    module, path = task.script_module, task.script_path
    if path.suffix == notebook.SUFFIX:
        path = logs.absolute() / f"{path.stem}.py"
    if task.step is not None:
        return None
    folders = os.pathsep.join(map(str, task.import_folders))
    with tempfile.TemporaryDirectory(prefix="halfstep-") as folder:
        raised = os.path.join(folder, "raised.txt")  # noqa: PTH118  for a command line
        script = str(path) if module is None else module
        command = [sys.executable, "-c", _PROGRAM, str(ROOT), str(Path.cwd()), policy, raised, folders]
        try:
            subprocess.run(
                [*command, "" if module is None else "-m", script, *task.command_line],
                cwd=task.script_folder,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_MOST_S,
                check=False,
            )
            with open(raised, encoding="utf-8") as stream:  # noqa: PTH123  the same
                return stream.read()
        except (OSError, subprocess.TimeoutExpired):
            return None
        finally:
            sealing.undo(Path.cwd())
