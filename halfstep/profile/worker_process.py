"""The parent's handle on a worker process."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import TypeVar

from halfstep.errors import ProfileError
from halfstep.system.child import Child, Lost
from halfstep.tasks.trial import Trial

STOP_TIMEOUT_S = 10.0

Serve = Callable[[Connection, Trial], None]
_Answer = TypeVar("_Answer")


def serve_worker(connection: Connection, trial: Trial) -> None:
    """What a worker process runs."""
    from halfstep.profile import worker  # imports TensorFlow, which the parent must not do

    worker.serve(connection, worker.Worker, trial)


class WorkerProcess:
    """A worker process of one arm, and the connection to it.

    Attributes:
        name: of the arm.
        measures: what it is measured at.
        connection: to wait for an answer.
        continued: how often this handle has continued it.
    """

    def __init__(
        self, name: str, trial: Trial, serve: Serve = serve_worker, measures: frozenset[str] = frozenset()
    ) -> None:
        self.name, self.measures, self.continued = name, measures, 0
        is_script = trial.task.script is not None
        self._child = Child(
            f"profile-{name}",
            serve,
            (trial,),
            trial.variant.variables,
            preload=trial.preload,
            python=trial.variant.python,
            may_have_children=is_script,
        )
        self.connection, self._process = self._child.connection, self._child.process
        self._is_busy = False

    @property
    def pid(self) -> int:
        """Of the process."""
        assert self._process.pid is not None, "the process was started"
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self._process.is_alive()

    def call(self, kind: type[_Answer], method: str, *arguments: object) -> _Answer:
        """Calls a method of the worker and returns its result, which is of this type.

        Raises:
            ProfileError: the worker reported an error, or died.
        """
        self.send(method, *arguments)
        return self.receive(kind)

    def send(self, method: str, *arguments: object) -> None:
        """Sends a call without waiting for its result."""
        self._is_busy = True
        self._child.send((method, arguments))

    def receive(self, kind: type[_Answer]) -> _Answer:
        """Waits for the result of the last call; raises as `call`."""
        answer = self._child.receive(kind, str)
        self._is_busy = False
        if isinstance(answer, Lost):
            raise ProfileError(
                f"profile: the process of {self.name} ended with status {answer.status}; -9 usually means that the "
                "machine ran out of memory with all variants loaded: lower train.batch_size, list fewer "
                "train.variants, or set profile.interleave: false"
            )
        if isinstance(answer, str):
            raise ProfileError(f"profile: {self.name}: {answer}")
        return answer

    def stand_still(self) -> None:
        """Stops the process and its children until `go_on`: out of turn, an input pipeline would fill its buffers."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Continues the process and its children."""
        self.continued += 1
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        """Signals the process's group, of which it is the leader as soon as it has answered once."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def close(self) -> None:
        """Closes the connection, which ends the process. Kills it if it is busy or does not end in `STOP_TIMEOUT_S`."""
        self.connection.close()
        self.go_on()
        if not self._is_busy:  # nobody would read the result of a call that an error or Ctrl-C has interrupted
            self._process.join(STOP_TIMEOUT_S)
        self._child.kill()
