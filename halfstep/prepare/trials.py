"""Runs what `prepare` tries under each variant, in a process of its own: one fails, and the others go on."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from halfstep.child import Child, ChildDiedError
from halfstep.fork_server import start_server, stop_servers
from halfstep.params import Params, Variant
from halfstep.tasks.spec import TaskSpec

WAIT_S = 60  # between the lines that say so


@dataclass(frozen=True)
class Failure:
    """What a script raised before it called `fit`.

    Attributes:
        message: for the user.
        raised: the exception in one line, without what halfstep says of it.
        is_missing: whether it did not find a file or a module.
    """

    message: str
    raised: str
    is_missing: bool

    def __str__(self) -> str:
        return self.message


@contextmanager
def servers(module: str, variants: Iterable[Variant]) -> Iterator[None]:
    """In the block, processes start quickly: `module`, which imports TensorFlow, is imported once for all of them."""
    try:
        for variant in variants:  # they import it at the same time
            start_server(variant.variables, module)
        yield
    finally:
        stop_servers()


def run_trial(name: str, module: str, variant: Variant, spec: TaskSpec, *arguments: Any) -> Any:
    """Calls `serve(connection, variant, spec, *arguments)` of a module in a new process, which `name` names.

    Returns:
        What it sends; a string says what went wrong.
    """
    whole = (module, variant, spec, *arguments)
    with Child(name, _serve, whole, variant.variables, preload=module, may_have_children=True) as child:
        waited_s = 0
        while not child.connection.poll(WAIT_S):
            waited_s += WAIT_S
            print(f"{name}: has waited {waited_s} s for its process", file=sys.stderr, flush=True)
        try:
            return child.receive()
        except ChildDiedError as error:
            return f"{spec.subject}: the process of {name}: {error}"


def candidates_left_out(settings: Params, problem_of: Callable[[str], str | None]) -> dict[str, str]:
    """Tries each candidate; returns why some are left out, by name, and says so.

    Args:
        settings: all parameters.
        problem_of: tries one; returns what went wrong, None if nothing did.
    """
    found: dict[str, str] = {}
    for name in settings.train.variants:
        if name != settings.compare.baseline and (problem := problem_of(name)) is not None:
            found[name] = problem
            print(f"prepare: {name} is left out: {problem}", file=sys.stderr, flush=True)
    return found


def _serve(connection: Connection, module: str, variant: Variant, *arguments: Any) -> None:
    importlib.import_module(module).serve(connection, variant, *arguments)
