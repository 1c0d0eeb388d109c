"""Runs what `prepare` tries under each variant, in a process of its own: one fails, and the others go on.

What the processes answer is defined here: the stage, which reads it, does not import TensorFlow.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Literal

from halfstep.child import Child, ChildDiedError
from halfstep.fork_server import start_server, stop_servers
from halfstep.params import Params, Variant
from halfstep.tasks.spec import CallSite, TaskSpec
from halfstep.text import joined

MOST_REFUSALS = 3  # layers of a candidate that are tried in float32, one after the other
WAIT_S = 300  # between the lines that say so; while the user's code runs, `explained` says it more often


@dataclass(frozen=True)
class TrialFailure:
    """What ended a process.

    Attributes:
        message: for the user.
        raised: what a script raised before it called `fit`, in one line, without what halfstep says of it; else empty.
        is_missing: whether it did not find a file or a module.
        layer: path of the layer that has failed; None if none has.
    """

    message: str
    raised: str = ""
    is_missing: bool = False
    layer: str | None = None

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True)
class ComparedExamples:
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
        unscaled_float16: whether a step of the script's own computes in float16 without scaling its loss.
        unscaled: whether a LossScaleOptimizer of the script's own was taken off, because the policy needs none.
        lost_inputs: what the type of the variant cannot hold of the inputs, as lines.
    """

    site: CallSite
    quality: ComparedExamples
    batch_size: int
    epochs: int
    steps_per_epoch: int
    steps_per_execution: int
    can_infer: bool
    held_out: bool
    train_sha256: str
    weights: str
    unnamed_files: tuple[str, ...]
    unscaled_float16: bool
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
            start_server(variant.variables, module, variant.python)
        yield
    finally:
        stop_servers()


def run_trial(name: str, module: str, variant: Variant, spec: TaskSpec, *arguments: Any) -> Any:
    """Calls `serve(connection, variant, spec, *arguments)` of a module in a new process, which `name` names.

    Returns:
        What it sends.
    """
    whole = (module, variant, spec, *arguments)
    with Child(
        name, _serve, whole, variant.variables, preload=module, python=variant.python, may_have_children=True
    ) as child:
        waited_s = 0
        while not child.connection.poll(WAIT_S):
            waited_s += WAIT_S
            print(f"{name}: its process has run for {waited_s} s", file=sys.stderr, flush=True)
        try:
            return child.receive()
        except ChildDiedError as error:
            return TrialFailure(f"{spec.subject}: the process of {name}: {error}")


@dataclass(frozen=True)
class Candidates:
    """What is known of the candidates.

    Attributes:
        left_out: why some cannot be trained, by name.
        refusals: paths of the layers that fail in 16 bits, and compute in float32 instead, by name.
    """

    left_out: dict[str, str]
    refusals: dict[str, tuple[str, ...]]


def try_candidates(settings: Params, try_one: Callable[[str, Variant], TrialFailure | None]) -> Candidates:
    """Tries each candidate, without the layers that refuse 16 bits where it fails in them, and says what it finds.

    Args:
        settings: all parameters.
        try_one: tries one with an entry; returns what went wrong, None if nothing did.
    """
    candidates = Candidates({}, {})
    for name in settings.train.variants:
        if name == settings.compare.baseline:
            continue
        entry, refusals = settings.variants[name], list[str]()
        first = failure = try_one(name, entry)
        while failure is not None and _is_new_refusal(failure.layer, entry, refusals):
            assert failure.layer is not None
            refusals.append(failure.layer)
            print(f"prepare: {name}: {failure.layer} fails in 16 bits; it is tried in float32", flush=True)
            failure = try_one(name, entry.with_float32(refusals))
        if failure is None:
            candidates.refusals.update({name: tuple(refusals)} if refusals else {})
            continue
        tried = f"; with {joined(refusals)} in float32: {failure}" if refusals else ""
        candidates.left_out[name] = f"{first}{tried}"
        print(f"prepare: {name} is left out: {candidates.left_out[name]}", file=sys.stderr, flush=True)
    return candidates


def _is_new_refusal(layer: str | None, entry: Variant, refusals: Sequence[str]) -> bool:
    """Whether a layer can be tried in float32."""
    is_mixed = entry.policy.startswith("mixed_")
    return layer is not None and is_mixed and layer not in refusals and len(refusals) < MOST_REFUSALS


def _serve(connection: Connection, module: str, variant: Variant, *arguments: Any) -> None:
    importlib.import_module(module).serve(connection, variant, *arguments)
