"""A child process that answers: runs a function there, and gives its answers, or says that it died.

`halfstep.system.commands` has the same for a program.
"""

from __future__ import annotations

import importlib
import multiprocessing
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, TypeVar, get_origin

from halfstep.system.fork_server import start_process
from halfstep.system.supervision import description_of_end

if TYPE_CHECKING:
    from typing import Self

_END_S = 10.0  # for a process that has closed its connection
_Answer = TypeVar("_Answer")
_Failure = TypeVar("_Failure")


@dataclass(frozen=True)
class Lost:
    """A process that ended without an answer, with its exit status, negative for a signal; None if it still runs."""

    status: int | None

    def __str__(self) -> str:
        return description_of_end(self.status or 0)


def serve(connection: Connection, module: str, *arguments: Any) -> None:
    """Calls the function `serve` of a module that imports TensorFlow, which the parent must not do."""
    importlib.import_module(module).serve(connection, *arguments)


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

    def send(self, value: object) -> None:
        """Sends what the target receives; if the child has died, `receive` says so."""
        with suppress(ConnectionError):
            self.connection.send(value)

    def receive(self, kind: type[_Answer], failure: type[_Failure]) -> _Answer | _Failure | Lost:
        """Waits for the next answer, which is of the first type, or of the second where the child could not do it."""
        try:
            answer = self.connection.recv()
        except (EOFError, ConnectionError):
            self.process.join(_END_S)
            return Lost(self.process.exitcode)
        assert isinstance(answer, (get_origin(kind) or kind, failure)), f"it has sent {type(answer).__name__}"
        return answer

    def kill(self) -> None:
        """Ends the process, if it runs, and the connection."""
        self.connection.close()
        self.process.kill()
        self.process.join()
