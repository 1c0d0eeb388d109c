"""The parent's handle on a worker process."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from halfstep.errors import ProfileError
from halfstep.profile.records import ArmConfig, OutOfMemory
from halfstep.system.child import Child, ChildDiedError
from halfstep.words.text import MIB

STOP_TIMEOUT_S = 10.0

Serve = Callable[[Connection, ArmConfig], None]


class OutOfMemoryError(ProfileError):
    """The worker of an arm had too little memory."""

    def __init__(self, arm: str, shortage: OutOfMemory) -> None:
        super().__init__(
            f"profile: {arm}: {shortage.batch_key} is {shortage.batch_size}, too large for the memory, of which "
            f"{shortage.peak_bytes / MIB:,.0f} MiB were used ({shortage.details}); reduce it"
        )


def serve_worker(connection: Connection, config: ArmConfig) -> None:
    """What a worker process runs."""
    from halfstep.profile import worker  # imports TensorFlow, which the parent must not do

    worker.serve(connection, worker.Worker, config)


class WorkerProcess:
    """A worker process of one arm, and the connection to it.

    Attributes:
        name: of the arm.
        measures: what it is measured at.
        connection: to wait for an answer.
        continued: how often this handle has continued it.
    """

    def __init__(
        self, name: str, config: ArmConfig, serve: Serve = serve_worker, measures: frozenset[str] = frozenset()
    ) -> None:
        self.name, self.measures, self.continued = name, measures, 0
        is_script = config.spec.task.script is not None
        self._child = Child(
            f"profile-{name}",
            serve,
            (config,),
            config.variant.variables,
            python=config.variant.python,
            may_have_children=is_script,
        )
        self.connection, self._process = self._child.connection, self._child.process
        self._is_busy = False

    @property
    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self._process.is_alive()

    def call(self, method: str, *arguments: Any) -> Any:
        """Calls a method of the worker and returns its result.

        Raises:
            OutOfMemoryError: the worker had too little memory.
            ProfileError: the worker reported another error, or died.
        """
        self.send(method, *arguments)
        return self.receive()

    def send(self, method: str, *arguments: Any) -> None:
        """Sends a call without waiting for its result; raises as `call`."""
        self._is_busy = True
        try:
            self._child.send((method, arguments))
        except ChildDiedError as error:
            raise self._died(error) from None

    def receive(self) -> Any:
        """Waits for the result of the last call; raises as `call`."""
        try:
            succeeded, value = self._child.receive()
        except ChildDiedError as error:
            raise self._died(error) from None
        self._is_busy = False
        if isinstance(value, OutOfMemory):
            raise OutOfMemoryError(self.name, value)
        if not succeeded:
            raise ProfileError(f"profile: {self.name}: {value}")
        return value

    def stand_still(self) -> None:
        """Stops the process and its children until `go_on`: out of turn, an input pipeline would fill its buffers."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Continues the process and its children."""
        self.continued += 1
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        """Signals the process's group, of which it is the leader as soon as it has answered once."""
        assert self._process.pid is not None, "the process was started"
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def close(self) -> None:
        """Closes the connection, which ends the process. Kills it if it is busy or does not end in `STOP_TIMEOUT_S`."""
        self.connection.close()
        self.go_on()
        if not self._is_busy:  # nobody would read the result of a call that an error or Ctrl-C has interrupted
            self._process.join(STOP_TIMEOUT_S)
        self._child.kill()

    def _died(self, error: ChildDiedError) -> ProfileError:
        return ProfileError(
            f"profile: the process of {self.name} ended with status {error.status}; -9 usually means that the machine "
            "ran out of memory with all variants loaded: lower train.batch_size, list fewer train.variants, or set "
            "profile.interleave: false"
        )
