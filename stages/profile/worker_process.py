"""The parent's handle on a worker process."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from stages.errors import ProfileError
from stages.profile import xla_choices
from stages.profile.device_memory import OutOfMemory, OutOfMemoryError
from stages.profile.fork_server import start_process
from stages.profile.records import ArmConfig

STOP_TIMEOUT_S = 10.0

Serve = Callable[[Connection, ArmConfig], None]


def serve_worker(connection: Connection, config: ArmConfig) -> None:
    """What a worker process runs."""
    from stages.profile import worker  # imports TensorFlow, which the parent must not do

    if config.xla_choices is not None:
        xla_choices.record_to(config.xla_choices)
    worker.serve(connection, worker.Worker, config)


class WorkerProcess:
    """A worker process of one arm, and the connection to it. It is forked from the server of the name `server`."""

    def __init__(self, name: str, config: ArmConfig, serve: Serve = serve_worker, server: str = "") -> None:
        self._connection, child_end = multiprocessing.Pipe()
        self.name = name
        variables = config.variant.variables
        self._process = start_process(f"profile-{name}", serve, (child_end, config), variables, server)
        child_end.close()  # so that reading fails when the worker dies
        self._is_busy = False

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
            self._connection.send((method, arguments))
        except ConnectionError:
            raise self._died() from None

    def receive(self) -> Any:
        """Waits for the result of the last call; raises as `call`."""
        try:
            succeeded, value = self._connection.recv()
        except (EOFError, ConnectionError):
            raise self._died() from None
        self._is_busy = False
        if isinstance(value, OutOfMemory):
            raise OutOfMemoryError(self.name, value)
        if not succeeded:
            raise ProfileError(f"profile: {self.name}: {value}")
        return value

    def close(self) -> None:
        """Closes the connection, which ends the process. Kills it if it is busy or does not end in `STOP_TIMEOUT_S`."""
        self._connection.close()
        if not self._is_busy:  # nobody would read the result of a call that an error or Ctrl-C has interrupted
            self._process.join(STOP_TIMEOUT_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def _died(self) -> ProfileError:
        self._process.join(STOP_TIMEOUT_S)
        code = self._process.exitcode
        return ProfileError(
            f"profile: the process of {self.name} ended with status {code}; -9 usually means that the machine ran out "
            "of memory with all variants loaded: lower train.batch_size, or list fewer train.variants"
        )
