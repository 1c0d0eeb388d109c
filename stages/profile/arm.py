"""An arm of the measurement as the parent sees it: a process at the other end of a line."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from typing import Any

from stages.errors import ProfileError
from stages.profile.records import Task

# imported once, by the server that all workers are forked from
PRELOADED = ["stages.quiet", "stages.profile.worker"]
STOP_TIMEOUT_S = 10.0


class Arm:
    """The parent's end of the line to a worker."""

    def __init__(self, name: str, task: Task) -> None:
        ours, theirs = multiprocessing.Pipe()
        self.name = name
        self._line = ours
        self._process = _process(name, task, theirs)
        theirs.close()  # so that a worker's death is seen as the end of the line

    def ask(self, method: str, *arguments: Any) -> Any:
        """Sends a request and waits for its answer.

        Raises:
            ProfileError: the worker refused, or died.
        """
        self.send(method, *arguments)
        return self.answer()

    def send(self, method: str, *arguments: Any) -> None:
        """Sends a request without waiting."""
        try:
            self._line.send((method, arguments))
        except (BrokenPipeError, ConnectionError):
            raise self._died() from None

    def answer(self) -> Any:
        """The answer to the last request; raises as `ask` does."""
        try:
            done, value = self._line.recv()
        except (EOFError, ConnectionError):
            raise self._died() from None
        if not done:
            raise ProfileError(f"profile: {self.name}: {value}")
        return value

    def stop(self) -> None:
        """Ends the process, gently where it can be."""
        self._line.close()
        self._process.join(STOP_TIMEOUT_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def _died(self) -> ProfileError:
        self._process.join(STOP_TIMEOUT_S)
        code = self._process.exitcode
        return ProfileError(
            f"profile: the process of {self.name} ended with status {code}; where that is -9 the machine's memory was "
            "too small for all variants at once: make train.batch_size smaller or list fewer train.variants"
        )


def _process(name: str, task: Task, line: Any) -> BaseProcess:
    """Starts a worker: forked from a server that has imported TensorFlow, in half a second instead of five.

    A variant with environment variables of its own gets a new interpreter: TensorFlow has read them at its import.
    """
    variables = task.variant.variables
    process: BaseProcess
    if variables:
        spawned = multiprocessing.get_context("spawn")
        process = spawned.Process(target=_serve, args=(line, task), name=f"profile-{name}", daemon=True)
    else:
        forked = multiprocessing.get_context("forkserver")
        forked.set_forkserver_preload(PRELOADED)
        process = forked.Process(target=_serve, args=(line, task), name=f"profile-{name}", daemon=True)
    with _set(variables):
        process.start()
    return process


@contextmanager
def _set(variables: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _serve(line: Any, task: Task) -> None:
    import stages.quiet  # noqa: F401  before TensorFlow
    from stages.profile.worker import serve  # here: the parent must not import it

    serve(line, task)
