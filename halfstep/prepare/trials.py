"""Runs what `prepare` tries under each variant, in a process of its own: one fails, and the others go on.

What the processes answer is defined here: the stage, which reads it, does not import TensorFlow.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Literal

from halfstep.child import Child, ChildDiedError
from halfstep.fork_server import start_server, stop_servers
from halfstep.params import Params, Variant
from halfstep.tasks.spec import CallSite, TaskSpec

WAIT_S = 300  # between the lines that say so; while the user's code runs, `explained` says it more often


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


@dataclass(frozen=True)
class Quality:
    """What a process has seen of the examples on which models are compared.

    Attributes:
        score_name, score_kind: as of `TaskInfo`; the name is None without a score; then `speed_only` says why.
        examples: number of test examples.
        sha256: of the first ones; empty without any.
        set_sha256: of all of them in any order; empty where the first are those of the other process.
    """

    score_name: str | None = None
    score_kind: Literal["score", "metric"] = "score"
    speed_only: str | None = None
    examples: int = 0
    sha256: str = ""
    set_sha256: str = ""


@dataclass(frozen=True)
class Look:
    """What a process that runs a script up to `fit` has seen.

    Attributes:
        batch_size: examples of the first batch.
        epochs, steps_per_epoch: of the call.
        steps_per_execution: of `compile`.
        can_infer: whether the model has outputs for inputs alone.
        held_out: whether the test examples were taken from the training data.
        train_sha256: of the first batches of the training.
        weights: the first initial weights of the largest variable.
        unnamed_files: that the script reads and `task.depends` does not name.
        unscaled: whether a LossScaleOptimizer of the script's own was taken off, because the policy needs none.
        lost_inputs: what the type of the variant cannot hold of the inputs, as lines.
    """

    site: CallSite
    quality: Quality
    batch_size: int
    epochs: int
    steps_per_epoch: int
    steps_per_execution: int
    can_infer: bool
    held_out: bool
    train_sha256: str
    weights: str
    unnamed_files: tuple[str, ...]
    unscaled: bool
    lost_inputs: tuple[str, ...]


@dataclass(frozen=True)
class Tried:
    """What is known of a task of the user's own under a candidate.

    Attributes:
        steps: of an epoch.
        lost_inputs: what the type of the variant cannot hold of the inputs, as lines.
    """

    steps: int
    lost_inputs: tuple[str, ...]


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
            print(f"{name}: its process has run for {waited_s} s", file=sys.stderr, flush=True)
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
