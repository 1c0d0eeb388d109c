"""An arm of the measurement as the parent sees it: a process at the other end of a line."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from stages.errors import ProfileError
from stages.profile.records import Task
from stages.profile.servers import start_process

STOP_TIMEOUT_S = 10.0

Serve = Callable[[Connection, Task], None]


class Arm:
    """The parent's end of the line to a worker."""

    def __init__(self, name: str, task: Task, run: Serve | None = None) -> None:
        ours, theirs = multiprocessing.Pipe()
        self.name = name
        self._line = ours
        self._process = start_process(f"profile-{name}", run or serve, (theirs, task), task.variant.variables)
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


def serve(line: Connection, task: Task) -> None:
    """What a worker's process runs: the default of what an `Arm` is told to run."""
    import stages.quiet  # noqa: F401  before TensorFlow
    from stages.profile import worker  # here: the parent must not import it

    worker.serve(line, worker.Worker, task)
