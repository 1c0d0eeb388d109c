"""Finds the training of a script where it is called: `fit`, `train_on_batch`, an optimizer, or `task.step`.

What follows runs inside the call, so that what the script's `with` statements hold stays open.
"""

from __future__ import annotations

import ast
import functools
import inspect
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from halfstep.errors import TaskError
from halfstep.inputs.closure import parsed
from halfstep.inputs.own_model import script_files
from halfstep.tasks import step_call, user_code
from halfstep.tasks.trial import Trial
from halfstep.tensorflow_import import keras

_ON_BATCH = "train_on_batch"


class Found(NamedTuple):
    """The call that is judged.

    Attributes:
        arguments: of Keras's `fit`, by name, with `self`; None for an optimizer in a loop of the script's own.
        line: of the script, from 1; 0 where the script's file is not on the stack.
        step: what is called once for each step, if not `fit`.
        library: whose code makes the call, such as a tuner's; None for the user's.
    """

    arguments: dict[str, Any] | None
    line: int
    step: str | None
    library: str | None


class TrainingCalls:
    """Runs a script up to the call that is judged.

    Args:
        trial: of the script.
        path: of the script, or of the code of its notebook.
        earlier: makes a call of `fit` before the one that is judged, given its number, Keras's `fit` and its arguments.

    Attributes:
        fit: Keras's own.
        number: calls of `fit` so far.
        elements: what the script's iterators gave, as `step_call.elements_kept` yields it.
    """

    def __init__(self, trial: Trial, path: Path, earlier: Callable[..., keras.callbacks.History]) -> None:
        self._task, self._subject, self._path, self._earlier = trial.task, trial.subject, path, earlier
        self._owner = next(kind for kind in keras.Model.__mro__ if "fit" in vars(kind))
        self.fit, self._signature = self._owner.fit, inspect.signature(self._owner.fit)
        self._on_batch, self._apply = keras.Model.train_on_batch, keras.optimizers.Optimizer.apply
        self.number, self._is_earlier = 0, False
        self.elements = step_call.Elements()
        self._process, self._is_found, self._hooked = os.getpid(), False, ExitStack()
        self._heard, self._told = os.pipe()
        os.set_blocking(self._heard, False)

    def run(self, main: Callable[[], None], then: Callable[[Found], NoReturn]) -> None:
        """Runs `main` until the call, and there `then`, which ends the process. Returns if `main` ends before.

        Raises:
            TaskError: the script trains in another thread, or in a process that it has forked.
        """
        self._then = then
        with self._hooked:
            self._hooked.enter_context(self._hooks())
            main()

    def step(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function that `task.step` names, at whose first call the script stops."""

        @functools.wraps(function, updated=())
        def first_call(*arguments: Any, **keywords: Any) -> Any:
            if self._is_found:
                return function(*arguments, **keywords)
            given = step_call.as_fit(function, arguments, keywords, self.elements)
            return self._hand_over(self._bound(**given), self._task.step)

        return first_call

    @contextmanager
    def _hooks(self) -> Iterator[None]:
        """In the block, Keras's methods are those below."""

        def fit(model: keras.Model, *arguments: Any, **keywords: Any) -> Any:
            return self._called_fit(model, *arguments, **keywords)

        def train_on_batch(model: keras.Model, *arguments: Any, **keywords: Any) -> Any:
            return self._called_on_batch(model, *arguments, **keywords)

        def apply(optimizer: Any, *arguments: Any, **keywords: Any) -> Any:
            if self._is_judged("an optimizer") and not self._may_fit_later():
                self._hand_over(None)
            return self._apply(optimizer, *arguments, **keywords)

        former = signal.signal(signal.SIGUSR2, lambda *_: self._raise_of_another(former))
        self._owner.fit, keras.Model.train_on_batch, keras.optimizers.Optimizer.apply = fit, train_on_batch, apply
        try:
            yield
        finally:
            self._owner.fit, keras.Model.train_on_batch = self.fit, self._on_batch
            keras.optimizers.Optimizer.apply = self._apply
            signal.signal(signal.SIGUSR2, former)

    def _called_fit(self, *arguments: Any, **keywords: Any) -> Any:
        if not self._is_judged("fit"):
            return self.fit(*arguments, **keywords)
        line, wanted, self.number = line_in(self._path), self._task.fit, self.number + 1
        if self.number < wanted if isinstance(wanted, int) else calls_of(self._path, line):
            self._is_earlier = True
            try:
                return self._earlier(self.number, self.fit, self._bound(*arguments, **keywords))
            finally:
                self._is_earlier = False
        return self._hand_over(self._bound(*arguments, **keywords))

    def _called_on_batch(self, *arguments: Any, **keywords: Any) -> Any:
        if not self._is_judged(_ON_BATCH):
            return self._on_batch(*arguments, **keywords)
        given = inspect.signature(self._on_batch).bind(*arguments, **keywords).arguments
        given.pop("return_dict", None)
        return self._hand_over(self._bound(**step_call.batch_as_fit(given.pop("self"), **given)), _ON_BATCH)

    def _is_judged(self, method: str) -> bool:
        """Whether a call is the script's own, and not by halfstep, nor in Keras's `fit`; of a loop, its step is."""
        is_forked = os.getpid() != self._process
        if is_forked or threading.current_thread() is not threading.main_thread():
            line = line_in(self._path)
            where = f"in a {'process' if is_forked else 'thread'} of its own{f', line {line}' if line else ''}"
            problem = f"{self._subject} calls {method} {where}: call the function that trains without it"
            os.write(self._told, problem.encode())
            os.kill(self._process, signal.SIGUSR2)  # its main thread may wait for this one
            if is_forked:
                os._exit(1)
            raise SystemExit
        return not self._is_earlier and self._task.step is None

    def _raise_of_another(self, former: Any) -> None:
        """Raises in the main thread what another thread or process has told."""
        try:
            problem = os.read(self._heard, 4096).decode()
        except BlockingIOError:  # the signal is somebody else's
            signal.signal(signal.SIGUSR2, former)
            os.kill(self._process, signal.SIGUSR2)
        else:
            raise TaskError(problem)

    def _hand_over(self, arguments: dict[str, Any] | None, step: str | None = None) -> NoReturn:
        library = _calling_library() if step is None else None
        found, self._is_found = Found(arguments, line_in(self._path), step, library), True
        self._hooked.close()
        self._then(found)

    def _bound(self, /, *arguments: Any, **keywords: Any) -> dict[str, Any]:
        given = self._signature.bind(*arguments, **keywords)
        given.apply_defaults()
        return dict(given.arguments)

    def _may_fit_later(self) -> bool:
        """Whether a script that trains in a loop of its own may call `fit` after that, by its text."""
        files = script_files(self._task.script_path, *self._task.import_folders).values()
        others = any(calls_of(file, 0) for file in files if file != self._path)
        return others or not set(calls_of(self._path, 0)) <= set(_lines_before(self._path))


def _calling_library() -> str | None:
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    if frame is None or user_code.is_users(Path(frame.f_code.co_filename)):
        return None
    return str(frame.f_globals["__name__"]).partition(".")[0]


def line_in(path: Path) -> int:
    """The line of the script that is running."""
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_filename == str(path):
            return frame.f_lineno
        frame = frame.f_back
    return 0


def _lines_before(path: Path) -> Iterator[int]:
    """Lines of the script that have run in the functions that are running, such as those of its scaler."""
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_filename == str(path):
            yield from (line for *_, line in frame.f_code.co_lines() if line is not None and line < frame.f_lineno)
        frame = frame.f_back


def calls_of(path: Path, after: int, method: str = "fit") -> list[int]:
    """Lines of a file after `after` that call a method of this name."""
    tree = parsed(path)
    if tree is None:
        return []
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    methods = ((node.func.attr, node.lineno) for node in calls if isinstance(node.func, ast.Attribute))
    return [line for name, line in methods if name == method and line > after]


def is_in_loop(path: Path, line: int) -> bool:
    """Whether a line of a file is in the body of a loop."""
    tree = parsed(path)
    loops = () if tree is None else (node for node in ast.walk(tree) if isinstance(node, ast.For | ast.While))
    return any(node.body[0].lineno <= line <= (node.body[-1].end_lineno or 0) for node in loops)
