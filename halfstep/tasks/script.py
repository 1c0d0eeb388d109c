"""Runs a training script up to the call of `fit` that is judged, and goes on inside that call.

The script never goes on after that call: the process ends in it. A process runs one script, once.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import multiprocessing
import os
import runpy
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from multiprocessing import util
from pathlib import Path
from typing import Any, NoReturn

from halfstep.errors import TaskError
from halfstep.inputs import notebook
from halfstep.inputs.closure import source_of
from halfstep.inputs.own_model import USE_A_STEP
from halfstep.params.schema import TaskParams
from halfstep.system import files, sealing, trackers
from halfstep.tasks import script_files, step_call, user_code
from halfstep.tasks.output import output_to
from halfstep.tasks.training_calls import Found, TrainingCalls, calls_of, is_in_loop
from halfstep.tasks.trial import CallSite, Trial
from halfstep.tensorflow_import import global_state, keras, seed_generator, tf
from halfstep.words.text import joined

_POLICY = "dtype_policy"  # its name in Keras's global state
_SEEDS = 1_000_000_007  # by this much per seed, the seeds that Keras draws differ
_STEPPED = "__halfstep_step__"
_LARGEST_SEED = 10**9  # that Keras draws
Earlier = Callable[..., keras.callbacks.History]  # makes a call of `fit` before the one that is judged


@dataclass(frozen=True)
class Call:
    """The call of `fit` that is judged.

    Attributes:
        model: compiled by the script.
        fit: Keras's own method.
        arguments: of the call, by name, with Keras's defaults.
        site: where it is; None for an earlier one, which is not judged.
    """

    model: keras.Model
    fit: Callable[..., Any]
    arguments: dict[str, Any]
    site: CallSite | None = None


@dataclass
class _State:
    """What this process has run."""

    call: Call | None = None
    error: TaskError | None = None  # why there is none
    folder: str = ""  # in which the script is, once it has called
    temporary: str | None = None  # folder of its temporary files
    notes: list[str] = field(default_factory=list)  # what differs from what it sets, or is set by it


_state = _State()


def inside(trial: Trial, log: Path, earlier: Earlier, go_on: Callable[[], None]) -> None:
    """Runs the script of a trial up to the call of `fit` that `task.fit` names, and goes on in that call.

    The process ends there. Where the script fails, or ends before that call, `go_on` is called after it, and `call`
    raises the error.

    The script's random numbers of Python and NumPy, which often split its data, are the same for every seed; weights,
    dropout and the shuffling of TensorFlow differ.

    Args:
        trial: its policy replaces what the script itself sets; its seed, too, unless it is 0.
        log: where the script's output goes.
        earlier: makes the calls of `fit` before, as `history_of`.
        go_on: what the process is for.
    """
    try:
        _run(trial, log, earlier, go_on)
    except TaskError as error:
        _state.error = error
    go_on()


def call() -> Call:
    """The call of `fit` that is judged. The working folder is then the one in which the script made it.

    Raises:
        TaskError: the script has failed, or ended before that call.
    """
    if _state.error is not None:
        raise _state.error
    assert _state.call is not None, "this process runs in `inside`"
    os.chdir(_state.folder)
    return _state.call


def has_called_fit() -> bool:
    """Whether the script of this process has reached the call of `fit` that is judged."""
    return bool(_state.folder)


def _run(trial: Trial, log: Path, earlier: Earlier, go_on: Callable[[], None]) -> NoReturn:
    """As `inside`; raises where the call is not reached."""
    task, path, subject = trial.task, _python_file(trial.task.script_path, log.parent), trial.subject
    if keras.config.backend() != "tensorflow":
        raise TaskError(f"{subject}: Keras uses the backend {keras.config.backend()}; unset KERAS_BACKEND")
    started_s, argv, folder = time.monotonic(), sys.argv, Path.cwd()
    multiprocessing.set_start_method(None, force=True)  # Python's default, which this process may have from its parent
    user_code.stay_in_checkout()
    sys.argv, sys.dont_write_bytecode = [str(task.script_path), *task.command_line], True
    sys.path.insert(0, str(task.import_folders[0]))
    sys.path += map(str, task.import_folders[1:])  # as with PYTHONPATH=., or where the repository is installed
    _decide_policy(trial.variant.policy)
    _decide_seeds(trial.seed)
    _decide_floatx()
    _take_strategies_of_one_device()
    user_code.seal((task.script_folder, *task.import_folders))
    calls, before, met = TrainingCalls(trial, path, earlier), user_code.settings(), dict[str, None]()
    explained = user_code.explained(subject, f"fails before it calls {task.step or 'fit'}", TaskError, is_script=True)

    def found(what: Found) -> NoReturn:
        kept.close()
        sys.argv, _state.folder = argv, os.getcwd()  # noqa: PTH109  as os.chdir takes it
        os.chdir(folder)
        sealing.reached_fit()
        try:
            _state.call = _call(what, trial, path, calls, before, met, time.monotonic() - started_s)
        except TaskError as error:
            _state.error = error
        _leave(go_on)

    try:
        os.chdir(task.script_folder)
        with explained, ExitStack() as kept:
            kept.enter_context(output_to(log))
            met = kept.enter_context(trackers.silenced())
            kept.enter_context(script_files.one_at_a_time(str(path), folder.absolute()))
            kept.enter_context(_temporary_files_kept())
            calls.elements = kept.enter_context(step_call.elements_kept() if task.step else nullcontext(calls.elements))
            calls.run(lambda: _run_main(path, task, calls.step), found)
    except TaskError as error:
        if isinstance(error.__cause__, SystemExit):  # what it says is seldom the cause
            raise TaskError(f"{error}; what it printed is in {log}") from error.__cause__
        raise
    finally:
        sys.argv = argv
        os.chdir(folder)
    raise TaskError(f"{subject} {_without_call(task, calls.number, log)}")


def _without_call(task: TaskParams, number: int, log: Path) -> str:
    """What a script does that ends before the call, after so many calls of `fit`."""
    if number:
        return f"calls fit only {number} time{'s' * (number > 1)}, and task.fit is {task.fit}"
    if task.step is not None:
        return f"ends without a call of {task.step} (task.step). What it printed is in {log}"
    return f"ends without a call of keras.Model.fit; {USE_A_STEP}. What it printed is in {log}"


def _call(
    found: Found,
    trial: Trial,
    path: Path,
    calls: TrainingCalls,
    before: dict[str, object],
    met: Iterable[str],
    seconds: float,
) -> Call:
    """The call that was found, `seconds` after the start.

    Args:
        found, calls: what was found, and by what.
        trial, path: of the script, and its file.
        before: TensorFlow's settings before it ran.
        met: libraries for tracking that it uses.
    """
    task, subject = trial.task, trial.subject
    if met:
        _state.notes.append(f"replaces its tracking with {joined(list(met))}: what it logs by itself is thrown away")
    if found.library and found.library != "halfstep":  # which calls what a notebook gave it
        _state.notes.append(f"trains by {found.library}: what that trains later is not judged, such as other networks")
    _state.notes += _changed_settings(before, subject)
    line, step = found.line, found.step
    if found.arguments is None:
        raise TaskError(f"{subject} applies gradients in line {line} in a loop of its own: {USE_A_STEP}")
    site = CallSite(
        line=line,
        number=calls.number,
        step=step,
        later_lines=tuple(calls_of(path, line, step or "fit")) if task.step is None else (),
        is_in_loop=not step and is_in_loop(path, line),
        seconds=seconds,
        notes=tuple(dict.fromkeys(_state.notes)),
    )
    return Call(found.arguments.pop("self"), calls.fit, found.arguments, site)


def _leave(go_on: Callable[[], None]) -> NoReturn:
    """Ends the process after `go_on`: the script does not go on."""
    status = 1
    try:
        go_on()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        trackers.remove()
        if _state.temporary is not None:
            shutil.rmtree(_state.temporary, ignore_errors=True)
        util._exit_function()  # type: ignore[attr-defined]  # as at the end of a process: it ends those that the script has started
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _python_file(path: Path, folder: Path) -> Path:
    """The script; of a notebook a file of its code cells in `folder`, to which the lines in messages refer."""
    if path.suffix != notebook.SUFFIX:
        return path
    written = folder / f"{path.stem}.py"
    files.write_text(written, source_of(path).decode(errors="replace"))
    return written


def _run_main(path: Path, task: TaskParams, stepped: Callable[[Any], Any]) -> None:
    """As `python FILE`, or `python -m MODULE`; the function of `task.step` is what `stepped` makes of it."""
    module = task.script_module
    of_module, _, name = (task.step or "").rpartition(":")
    if of_module:
        imported = importlib.import_module(of_module)
        setattr(imported, name, stepped(getattr(imported, name)))
    elif name:
        spec = None if module is None else importlib.util.find_spec(module)
        code = compile(_with_step(path, name), str(path), "exec")
        runpy._run_module_code(  # type: ignore[attr-defined]  # as run_path does
            code, {_STEPPED: stepped}, "__main__", spec, script_name=str(path)
        )
        return
    if module is None:
        runpy.run_path(str(path), run_name="__main__")
    else:
        runpy.run_module(module, run_name="__main__", alter_sys=True)


def _with_step(path: Path, name: str) -> ast.Module:
    """The script, in which the functions of this name are given to `_STEPPED`, whatever decorates them.

    Raises:
        TaskError: it defines none.
    """
    tree, count = ast.parse(source_of(path), str(path)), 0
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == name:
            node.decorator_list.insert(0, ast.Name(_STEPPED, ast.Load()))
            count += 1
        if isinstance(node, ast.Assign) and any(isinstance(to, ast.Name) and to.id == name for to in node.targets):
            node.value = ast.Call(ast.Name(_STEPPED, ast.Load()), [node.value], [])
            count += 1
    if not count:
        raise TaskError(f"task.step is '{name}', which {path.name} does not define; of another module: module:{name}")
    return ast.fix_missing_locations(tree)


@contextmanager
def _temporary_files_kept() -> Iterator[None]:
    """In the block temporary files are those of the user: a download that is kept there is not made again.

    Afterwards they are removed: TensorFlow writes one for each function that it traces.
    """
    before, tempfile.tempdir = tempfile.tempdir, None
    try:
        yield
    finally:
        if before is None:  # the processes of `profile` have a folder
            before = _state.temporary = tempfile.mkdtemp(prefix="halfstep-")
        tempfile.tempdir = before


def _decide_policy(policy: str) -> None:
    """Makes `policy` the default of all layers, whatever the script sets or clears."""
    decided = keras.dtype_policies.get(policy)
    read, write = global_state.get_global_attribute, global_state.set_global_attribute

    def get(name: str, *arguments: Any, **keywords: Any) -> Any:
        return decided if name == _POLICY else read(name, *arguments, **keywords)

    def put(name: str, value: Any) -> None:
        if name == _POLICY:
            _state.notes.append(f"replaces its dtype policy ({getattr(value, 'name', value)}) by that of the variant")
        else:
            write(name, value)

    global_state.get_global_attribute, global_state.set_global_attribute = get, put


def _take_strategies_of_one_device() -> None:
    """Replaces strategies that do what one device does by TensorFlow's default one, which can be measured."""
    mirrored = tf.distribute.MirroredStrategy

    def one_device(devices: Any = None, *arguments: Any, **keywords: Any) -> Any:
        number = len(devices) if isinstance(devices, list | tuple) else len(tf.config.list_physical_devices("GPU"))
        if number > 1:
            return mirrored(devices, *arguments, **keywords)
        _state.notes.append("replaces its strategy by that of one device, the only one that it would use")
        return tf.distribute.get_strategy()

    tf.distribute.MirroredStrategy = tf.distribute.OneDeviceStrategy = one_device


def _decide_seeds(seed: int) -> None:
    """Seeds the process, and makes the seeds of TensorFlow and of Keras's layers depend on `seed`."""
    keras.utils.set_random_seed(0)
    set_seed, draw, name = tf.random.set_seed, seed_generator.make_default_seed, "make_default_seed"

    def set_shifted(value: int) -> None:
        _state.notes.append(f"replaces its seed ({value}), which stays as it is for seed 0 of train.seeds")
        set_seed((value + seed) % 2**31)

    def drawn() -> int:
        return (draw() + seed * _SEEDS - 1) % _LARGEST_SEED + 1

    set_seed(seed)
    tf.random.set_seed = set_shifted
    _replace_in_keras(name, draw, drawn)


def _decide_floatx() -> None:
    """Keeps Keras's own type float32: inputs, losses and optimizers have it under every policy."""
    own, name = keras.config.set_floatx, "set_floatx"

    def kept(value: str) -> None:
        if value != keras.config.floatx():
            _state.notes.append(
                f"replaces its floatx ({value}) by float32: the policy says what is computed in 16 bits"
            )

    _replace_in_keras(name, own, kept)


def _replace_in_keras(name: str, own: Callable[..., Any], other: Callable[..., Any]) -> None:
    """Replaces a function in each module of Keras that has imported it."""
    for imported, module in list(sys.modules.items()):
        if imported.partition(".")[0] == "keras" and vars(module).get(name) is own:
            setattr(module, name, other)


def _changed_settings(before: dict[str, object], subject: str) -> Iterator[str]:
    """What the script has set for every variant.

    Raises:
        TaskError: it has set what the variant decides.
    """
    for name, value in user_code.settings().items():
        if value == before[name] or name in user_code.SEEDS:
            continue
        if name == user_code.TF32:
            raise TaskError(f"{subject} changed {name} to {value}; remove that call: the entry of variants sets it")
        yield f"keeps {name}, which it sets to {value}, under every policy"
