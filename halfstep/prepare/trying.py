"""Tries a task of the user's own before any training, under every variant, each in a process of its own.

A script is also run with every seed. What the processes answer is defined here: this module, which reads it, does not
import TensorFlow, and `halfstep.prepare.inspection`, which they run, does.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from halfstep.errors import ALL_OF_IT, TaskError
from halfstep.params.schema import Params, Variant
from halfstep.prepare.plain_python import raised_in_plain_python
from halfstep.results.task import TASK_INFO, StepTime, TaskInfo, step_time_file
from halfstep.system import files, sealing
from halfstep.system.child import Child, Lost, serve
from halfstep.system.fork_server import start_server, stop_servers
from halfstep.tasks.trial import FITS, SCRIPT_LOGS, Trial
from halfstep.words.text import joined

MOST_REFUSALS = 3  # layers of a candidate that are tried in float32, one after the other
WAIT_S = 300  # between the lines that say so; while the user's code runs, `explained` says it more often
SLOW_S = 5.0  # before `fit`, from which on it is said
_PROGRAM, _LAYERS = "halfstep.prepare.inspection", "halfstep.prepare.layers"  # they import TensorFlow
_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class TrialFailure:
    """What ended a process.

    Attributes:
        message: for the user.
        raised: what a script raised, in one line, without what halfstep says of it; else empty.
        is_missing: whether it did not find a file or a module.
        layer: path of the layer that has failed; None if none has.
    """

    message: str
    raised: str = ""
    is_missing: bool = False
    layer: str | None = None


@dataclass(frozen=True)
class Inspection:
    """What a process has found of a task, of which it has trained a step.

    Attributes:
        info: what the task is.
        weights: the first initial weights of the largest variable.
        compared: a sha256 of the first examples that a script is compared on, and one of all of them in any order; the
            second is empty where the first is that of the baseline's process.
        reads: files that a script reads, which are looked at again at each start.
        lines: what the user should know.
        seconds: until a script called `fit`.
        step_s: about the seconds of a training step; None where none was timed.
    """

    info: TaskInfo
    weights: str = ""
    compared: tuple[str, str] = ("", "")
    reads: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    seconds: float = 0.0
    step_s: float | None = None


def layers_of(settings: Params, shape: tuple[int, int, int] | None, classes: int) -> dict[str, str]:
    """The class of each layer by its path; the model is built without prepared data.

    `shape` and `classes` are of images.

    Raises:
        TaskError: it cannot be built.
    """
    name = settings.compare.baseline
    with servers(_LAYERS, [settings.variants[name]]):
        trial = Trial.of(settings, name, settings.train.seeds[0])
        answer = run_trial(dict[str, str], _LAYERS, trial, shape, classes)
    if isinstance(answer, TrialFailure):
        raise TaskError(answer.message)
    return answer


def prepare_task(settings: Params, directory: Path) -> TaskInfo:
    """Builds, tests and trains the task for one step in each process, and writes `task.json` and the manifest.

    A candidate under which it fails is left out, and said so.

    Args:
        settings: all parameters.
        directory: folder of the prepared data, which a task's own `prepare` fills first, where there is one.

    Raises:
        TaskError: the task cannot be used; the message says why.
    """
    shutil.rmtree(directory / FITS, ignore_errors=True)
    sealing.forget_lent(Path.cwd())
    directory.mkdir(parents=True, exist_ok=True)
    with servers(_PROGRAM, (settings.variants[name] for name in settings.train.variants)):
        inspections = _Inspections(settings, directory)
    for line in inspections.lines():
        print(f"prepare: {line}", flush=True)
    info = inspections.info()
    info.write(directory / TASK_INFO.name)
    files.write_manifest(directory)
    if inspections.first.step_s is not None:
        StepTime(seconds=inspections.first.step_s).write(step_time_file(directory))
    return info


@contextmanager
def servers(module: str, variants: Iterable[Variant]) -> Iterator[None]:
    """In the block, processes start quickly: `module`, which imports TensorFlow, is imported once for all of them."""
    try:
        for variant in variants:  # they import it at the same time
            start_server(variant.variables, module, variant.python)
        yield
    finally:
        stop_servers()


def run_trial(kind: type[_Answer], module: str, trial: Trial, *arguments: object) -> _Answer | TrialFailure:
    """Calls `serve(connection, trial, *arguments)` of a module in a new process.

    Returns:
        What it sends, of this type, or what ended it.
    """
    name, variant, whole = f"{trial.name}-{trial.seed}", trial.variant, (module, trial, *arguments)
    with Child(
        name, serve, whole, variant.variables, preload=module, python=variant.python, may_have_children=True
    ) as child:
        waited_s = 0
        while not child.connection.poll(WAIT_S):
            waited_s += WAIT_S
            print(f"{name}: its process has run for {waited_s} s", file=sys.stderr, flush=True)
        answer = child.receive(kind, TrialFailure)
        return TrialFailure(f"{trial.subject}: the process of {name}: {answer}") if isinstance(answer, Lost) else answer


class _Inspections:
    """What the processes have found of the task."""

    def __init__(self, settings: Params, directory: Path) -> None:
        self._settings, self._directory, self._is_script = settings, directory, settings.task.script is not None
        self._subject, self._name = settings.task.subject, settings.task.shown
        self._baseline, self._seed = settings.compare.baseline, settings.train.seeds[0]
        self._folder: str | None = None  # in which a script runs, if not its own
        self._first: Inspection | None = None
        self._first = self._inspect_baseline()
        self._by_variant = {self._baseline: self._first}
        self._weights = {self._seed: self._first.weights} if self._is_script else {}
        self._again: Inspection | None = None  # the baseline's, once more
        self._depends_on_precision = False
        self._differing: dict[str, None] = {}  # the kinds of data that differ from process to process
        self._left_out: dict[str, str] = {}
        self._refusals: dict[str, tuple[str, ...]] = {}
        for name in settings.train.variants:
            if name != self._baseline:
                self._try(name)
        for seed in settings.train.seeds[1:] if self._is_script else ():
            inspection = self._required(self._inspect(self._baseline, seed))
            self._weights[seed] = inspection.weights
            self._compare_seeds(seed, inspection)

    @property
    def first(self) -> Inspection:
        """The baseline's."""
        assert self._first is not None, "it comes first"
        return self._first

    def info(self) -> TaskInfo:
        """The content of `task.json`."""
        size = self._batch_size(self._baseline)
        steps = {
            self._batch_size(name): inspection.info.steps_per_epoch
            for name, inspection in self._by_variant.items()
            if not self._is_script and self._batch_size(name) != size
        }
        script = self.first.info.script
        changes = {
            "script": script and script.model_copy(update={"folder": self._folder}),
            "speed_only": self._speed_only,
            "steps_by_batch": steps,
            "left_out": self._left_out,
            "refusals": self._refusals,
            "reads": {os.path.relpath(path): files.sha256_file(Path(path)) for path in self.first.reads} or None,
            "first_weights": (self._settings.task.step is None and self._weights) or None,
        }
        return self.first.info.model_copy(update=changes)

    @property
    def _speed_only(self) -> str | None:
        """Why the quality is not compared; None if it is."""
        differs = "its validation data differ from run to run" if "validation" in self._differing else None
        return self.first.info.speed_only or differs

    def lines(self) -> Iterator[str]:
        """What the user should know."""
        if self._folder is not None:
            yield f"{self._name} runs in {self._folder}: it does not find its files in its own folder"
        yield from dict.fromkeys(line for inspection in self._by_variant.values() for line in inspection.lines)
        if self._differing and not self._settings.task.step:  # which trains nothing
            noise = "" if self._speed_only else ", which moves the quality of each variant"
            yield (
                f"{self._name} gives other {' and '.join(sorted(self._differing))} data in each run{noise}: seed each "
                "generator that it makes, such as np.random.default_rng(), read records in a fixed order, and augment "
                "without threads"
            )
        if self._depends_on_precision:
            yield (
                f"{self._name} gives fit data that depend on the precision, such as outputs of another network: all "
                "variants are tested on the baseline's"
            )
        if self.first.seconds > SLOW_S:
            yield (
                f"{self._name} takes {self.first.seconds:.0f} s to reach {self._settings.task.step or 'fit'}, in each "
                f"of at least {self._processes()} processes that run it"
            )
        if self._is_script:
            yield f"what {self._name} prints is in {SCRIPT_LOGS}/"

    def _processes(self) -> int:
        """The fewest that run the script: here, for each training, and in each of two repeats of the timing."""
        train, is_trained = self._settings.train, self._speed_only is None and self._settings.train.epochs != 0
        variants, seeds = len(train.variants), len(train.seeds)
        return variants + seeds - 1 + variants * seeds * is_trained + 2 * (variants + 1)

    def _batch_size(self, variant: str) -> int:
        return self._settings.variants[variant].applied_to(self._settings.train).batch_size

    def _inspect(self, variant: str, seed: int, entry: Variant | None = None) -> Inspection | TrialFailure:
        """What a new process finds, or what ended it."""
        trial = Trial.of(self._settings, variant, seed, directory=self._directory)
        return run_trial(Inspection, _PROGRAM, replace(trial, variant=entry or trial.variant), self._first)

    def _inspect_baseline(self) -> Inspection:
        """The baseline's: of a script in its own folder, or in its repository's root if it finds something there."""
        settings, task = self._settings, self._settings.task
        result = self._inspect(self._baseline, self._seed)
        if isinstance(result, TrialFailure) and result.is_missing and not task.folder and len(task.import_folders) > 1:
            self._folder = str(task.import_folders[1])
            self._settings = settings.model_copy(update={"task": task.model_copy(update={"folder": self._folder})})
            again = self._inspect(self._baseline, self._seed)
            if not (isinstance(again, TrialFailure) and again.is_missing and again.raised == result.raised):
                return self._required(again)  # it gets further there
            self._settings, self._folder = settings, None
        return self._required(result)

    def _required(self, result: Inspection | TrialFailure) -> Inspection:
        if isinstance(result, TrialFailure):
            raise TaskError(self._message(result, self._baseline))
        return result

    def _message(self, failure: TrialFailure, variant: str) -> str:
        """The message; of a script with whether it fails in plain Python, too."""
        if not failure.raised:
            return failure.message
        policy = self._settings.variants[variant].policy
        message = failure.message if self._folder is None else f"{failure.message}; it ran in {self._folder}"
        raised = raised_in_plain_python(self._settings.task, policy, SCRIPT_LOGS)
        here, there = (text.partition(ALL_OF_IT)[0] for text in (failure.raised, raised or "nothing"))
        if not here.endswith(there) and not there.endswith(here):  # one may begin with the exception's class
            return message
        return f"{message}; in plain Python{'' if policy == 'float32' else ' with this policy'}, too"

    def _try(self, variant: str) -> None:
        """Tries a candidate, without the layers that refuse 16 bits where it fails in them."""
        entry, refusals, messages = self._settings.variants[variant], list[str](), list[str]()
        result = self._inspect(variant, self._seed)
        while isinstance(result, TrialFailure):
            messages.append(self._message(result, variant))
            layer = result.layer
            may_go_on = entry.policy.startswith("mixed_") and len(refusals) < MOST_REFUSALS
            if layer is None or layer in refusals or not may_go_on:
                tried = f"; with {joined(refusals)} in float32: {messages[-1]}" if refusals else ""
                self._left_out[variant] = f"{messages[0]}{tried}"
                print(f"prepare: {variant} is left out: {messages[0]}{tried}", file=sys.stderr, flush=True)
                return
            refusals.append(layer)
            print(f"prepare: {variant}: {layer} fails in 16 bits; it is tried in float32", flush=True)
            result = self._inspect(variant, self._seed, entry.with_float32(refusals))
        self._by_variant[variant] = result
        self._refusals |= {variant: tuple(refusals)} if refusals else {}
        if self._is_script:
            self._compare(variant, result)

    def _compare(self, variant: str, inspection: Inspection) -> None:
        """Notes which data differ from those of the baseline's process, in another process of the baseline, too.

        Raises:
            TaskError: the initial weights differ.
        """
        if differing := _differing_data(inspection, self.first):
            if self._again is None:
                self._again = self._required(self._inspect(self._baseline, self._seed))
            self._differing |= (unseeded := _differing_data(self._again, self.first))
            self._depends_on_precision |= not differing.keys() <= unseeded.keys()
        keeps_float32 = self._settings.variants[variant].dtype_policy.variables.name == "float32"
        if (
            keeps_float32 and not self._settings.task.step and inspection.weights != self.first.weights
        ):  # a step has run once
            raise TaskError(
                f"{self._subject} gives other initial weights when it runs again with the same seed: seed what it "
                "draws, so that all variants are trained from the same start"
            )

    def _compare_seeds(self, seed: int, inspection: Inspection) -> None:
        """Notes whether the validation data depend on the seed.

        Raises:
            TaskError: the initial weights do not.
        """
        if "validation" in _differing_data(inspection, self.first):
            self._differing["validation"] = None
        if self._settings.task.step is None and inspection.weights == self.first.weights:
            raise TaskError(
                f"{self._subject} gives the same initial weights with the seeds {self._seed} and {seed}: its layers "
                "have seeds of their own; remove those, or give train.seeds one seed"
            )


def _differing_data(one: Inspection, other: Inspection) -> dict[str, None]:
    """The kinds of data that differ. Examples in another order are the same ones: they are stored once."""
    differing = {"training": None} if one.info.data_sha256 != other.info.data_sha256 else {}
    if all(there != here for there, here in zip(one.compared, other.compared, strict=True)):
        differing["validation"] = None
    return differing
