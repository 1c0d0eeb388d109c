"""A child process that answers: runs a function there, and gives its answers, or says that it died.

`halfstep.system.commands` has the same for a program.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Mapping
from typing import Any, Self

from halfstep.system.fork_server import start_process
from halfstep.system.supervision import description_of_end

_END_S = 10.0  # for a process that has closed its connection


class ChildDiedError(Exception):
    """The process ended without an answer.

    Attributes:
        status: its exit status, negative for a signal; None if it still runs.
    """

    def __init__(self, status: int | None) -> None:
        super().__init__(description_of_end(status or 0))
        self.status = status


class Child:
    """A process that is forked from the server of its environment variables, and the connection to it.

    Args:
        name: of the process.
        target: called there with the other end of the connection and `arguments`. It sends its answers.
        arguments: as above.
        variables: environment variables.
        preload, python, may_have_children: as of `start_process`.

    Attributes:
        connection: to wait for an answer.
        process: to signal and to wait for.
    """

    def __init__(
        self,
        name: str,
        target: Callable[..., None],
        arguments: tuple[Any, ...],
        variables: Mapping[str, str],
        *,
        preload: str | None = None,
        python: str | None = None,
        may_have_children: bool = False,
    ) -> None:
        self.connection, child_end = multiprocessing.Pipe()
        whole = (child_end, *arguments)
        self.process = start_process(
            name, target, whole, variables, preload=preload, python=python, may_have_children=may_have_children
        )
        child_end.close()  # so that reading fails when the child dies

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def send(self, value: Any) -> None:
        """Sends what the target receives.

        Raises:
            ChildDiedError: it cannot, any more.
        """
        try:
            self.connection.send(value)
        except ConnectionError:
            raise self._died() from None

    def receive(self) -> Any:
        """Waits for the next answer.

        Raises:
            ChildDiedError: there will be none.
        """
        try:
            return self.connection.recv()
        except (EOFError, ConnectionError):
            raise self._died() from None

    def kill(self) -> None:
        """Ends the process, if it runs, and the connection."""
        self.connection.close()
        self.process.kill()
        self.process.join()

    def _died(self) -> ChildDiedError:
        self.process.join(_END_S)
        return ChildDiedError(self.process.exitcode)
