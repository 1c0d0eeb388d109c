"""Checks a training script before any training: runs it up to `fit` under every variant and with every seed.

Each run is a process of its own, because a script runs once a process.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from halfstep import files
from halfstep.errors import ALL_OF_IT, TaskError, one_line
from halfstep.params import Params, Variant
from halfstep.prepare.plain_python import raised_in_plain_python
from halfstep.prepare.trials import Look, TrialFailure, run_trial, servers, try_candidates
from halfstep.results.task import TASK_INFO, ScriptInfo, TaskInfo
from halfstep.tasks.spec import FITS, TaskSpec

LOGS = files.WORK_DIR / "script"

_MODULE = "halfstep.prepare.try_script"  # it imports TensorFlow, which the stage itself does not
SLOW_S = 5.0  # before `fit`, from which on it is said


def prepare_script(settings: Params, directory: Path) -> TaskInfo:
    """Runs the script in a process for each variant and seed, and writes the examples, `task.json` and the manifest.

    A candidate under which the script fails is left out, and said so.

    Args:
        settings: all parameters.
        directory: folder of the prepared data.

    Raises:
        TaskError: the script cannot be used; the message says why.
    """
    shutil.rmtree(directory / FITS, ignore_errors=True)
    directory.mkdir(parents=True, exist_ok=True)
    with servers(_MODULE, (settings.variants[name] for name in settings.train.variants)):
        looks = _Looks(settings, directory)
        info = looks.info()
    for line in looks.lines():
        print(line, flush=True)
    info.write(directory / TASK_INFO.name)
    files.write_manifest(directory)
    return info


class _Looks:
    """What the processes have seen."""

    def __init__(self, settings: Params, directory: Path) -> None:
        self._settings, self._directory = settings, directory
        self._subject = settings.task.subject
        self._baseline, self._seed = settings.compare.baseline, settings.train.seeds[0]
        self.folder: str | None = None  # in which it runs, if not its own
        self.first = self._first_look()
        self._by_variant = {self._baseline: self.first}
        self._other_training = self._other_validation = False
        self.candidates = try_candidates(settings, self._try)
        for seed in settings.train.seeds[1:]:
            self._compare_seeds(seed, self._required(self._look(self._baseline, seed)))

    def _first_look(self) -> Look:
        """The baseline's: in the script's own folder, or in the root of its repository if it finds something there."""
        settings, task = self._settings, self._settings.task
        result = self._look(self._baseline, self._seed, self._directory)
        tries = task.folder is None and len(task.import_folders) > 1
        if tries and isinstance(result, TrialFailure) and result.is_missing:
            self.folder = str(task.import_folders[1])
            self._settings = settings.model_copy(update={"task": task.model_copy(update={"folder": self.folder})})
            again = self._look(self._baseline, self._seed, self._directory)
            if not (isinstance(again, TrialFailure) and again.is_missing and again.raised == result.raised):
                return self._required(again)  # it gets further there
            self._settings, self.folder = settings, None
        return self._required(result)

    @property
    def _speed_only(self) -> str | None:
        """Why the quality is not compared; None if it is."""
        if self.first.quality.speed_only is None and self._other_validation:
            return "its validation data differ from run to run"
        return self.first.quality.speed_only

    def info(self) -> TaskInfo:
        """The content of `task.json`."""
        first, quality = self.first, self.first.quality
        return TaskInfo(
            name=self._settings.task.shown,
            score_name=quality.score_name or "none",
            score_kind=quality.score_kind,
            examples=max(quality.examples, 1),
            steps_per_epoch=first.steps_per_epoch,
            data_sha256=first.train_sha256,
            script=ScriptInfo(
                line=first.site.line,
                epochs=first.epochs,
                batch_size=first.batch_size,
                folder=self.folder,
            ),
            can_infer=first.can_infer,
            restarts=True,
            **vars(self.candidates),
            speed_only=self._speed_only,
        )

    def lines(self) -> Iterator[str]:
        """What the user should know."""
        first, site, name = self.first, self.first.site, self._settings.task.shown
        lines = ", ".join(map(str, site.later_lines))
        later = f"; later ones (line {lines}) are not: task.fit names another, or last" if lines else ""
        step = self._settings.task.step
        taken = "the call of fit" if step is None else f"the first call of {step}"
        yield f"prepare: {name}: {taken} in line {site.line} is taken{later}"
        if site.number > 1:
            before = "1 before it is" if site.number == 2 else f"{site.number - 1} before it are"
            yield f"prepare: {name}: {before} trained once, and all variants go on from there"
        if site.is_in_loop:
            yield f"prepare: {name} calls fit in a loop: one training of several is judged"
        if self.folder is not None:
            yield f"prepare: {name} runs in {self.folder}: it does not find its files in its own folder"
        for text in site.replaced:
            yield f"prepare: {name}: replaces {text}"
        if (self._other_training or self._other_validation) and not self._settings.task.step:  # which trains nothing
            what = " and ".join(["training"] * self._other_training + ["validation"] * self._other_validation)
            noise = "" if self._speed_only else ", which moves the quality of each variant"
            yield (
                f"prepare: {name} gives other {what} data in each run{noise}: seed each generator that it makes, such "
                "as np.random.default_rng(), read records in a fixed order, and augment without threads"
            )
        for variant, look in self._by_variant.items():
            if look.unscaled_float16:
                yield (
                    f"prepare: {name}: its step scales no loss in {variant}, so that small gradients are lost: this "
                    "variant shows the speed alone"
                )
        if any(look.unscaled for look in self._by_variant.values()):
            yield f"prepare: {name}: its LossScaleOptimizer is used where the policy is mixed_float16, and nowhere else"
        for line in dict.fromkeys(line for look in self._by_variant.values() for line in look.lost_inputs):
            yield f"prepare: {name}: {line}"
        if first.held_out:
            yield (
                f"prepare: {name} has no validation data: the last fifth of its training arrays is held out, which "
                "changes the script"
            )
        if first.steps_per_execution > 1:
            yield f"prepare: {name}: timed with one step a call, not with {first.steps_per_execution}"
        if first.unnamed_files:
            one, *more = first.unnamed_files
            others = f" and {len(more):,} more files" if more else ""
            yield (
                f"prepare: {name} reads {one_line(one, 200)}{others}, which task.depends does not name: add it, or its "
                "folder, so that a change of it runs the stages again"
            )
        if site.seconds > SLOW_S:
            goal = self._settings.task.step or "fit"
            yield (
                f"prepare: {name} takes {site.seconds:.0f} s to reach {goal}, in each of at least {self._processes()} "
                "processes that run it"
            )
        yield f"prepare: what {name} prints is in {LOGS}/"

    def _processes(self) -> int:
        """The fewest that run the script: here, for each training, and in each of two repeats of the timing."""
        train, is_trained = self._settings.train, self._speed_only is None and self._settings.train.epochs != 0
        variants, seeds = len(train.variants), len(train.seeds)
        return variants + seeds - 1 + variants * seeds * is_trained + 2 * (variants + 1)

    def _look(
        self, variant: str, seed: int, directory: Path | None = None, entry: Variant | None = None
    ) -> Look | TrialFailure:
        entry = entry or self._settings.variants[variant]
        spec = TaskSpec.of(self._settings, variant, directory=self._directory)
        log = (LOGS / f"{variant}-{seed}.txt").absolute()
        first = None if directory else self.first
        result: Look | TrialFailure = run_trial(f"{variant}-{seed}", _MODULE, entry, spec, seed, log, directory, first)
        return result

    def _try(self, variant: str, entry: Variant) -> TrialFailure | None:
        result = self._look(variant, self._seed, entry=entry)
        if isinstance(result, TrialFailure):
            return replace(result, message=self._told(result, variant))
        self._compare(variant, result)
        self._by_variant[variant] = result
        return None

    def _required(self, result: Look | TrialFailure) -> Look:
        if isinstance(result, TrialFailure):
            raise TaskError(self._told(result, self._baseline))
        return result

    def _told(self, failure: TrialFailure, variant: str) -> str:
        """The message, with whether the script fails in plain Python, too."""
        policy = self._settings.variants[variant].policy
        if not failure.raised:
            return failure.message
        told = failure.message if self.folder is None else f"{failure}; it ran in {self.folder}"
        raised = raised_in_plain_python(self._settings.task, policy, LOGS)
        if raised is None or raised.partition(ALL_OF_IT)[0] != failure.raised.partition(ALL_OF_IT)[0]:
            return told
        return f"{told}; in plain Python{'' if policy == 'float32' else ' with this policy'}, too"

    def _compare(self, variant: str, look: Look) -> None:
        """Notes which data differ from those of the baseline's process.

        Raises:
            TaskError: the initial weights differ.
        """
        self._other_training |= look.train_sha256 != self.first.train_sha256
        self._note_validation(look)
        if self._settings.task.step is not None:
            return  # which has run once
        if _has_float32_variables(self._settings.variants[variant]) and look.weights != self.first.weights:
            raise TaskError(
                f"{self._subject} gives other initial weights when it runs again with the same seed: seed what it "
                "draws, so that all variants are trained from the same start"
            )

    def _compare_seeds(self, seed: int, look: Look) -> None:
        """Notes whether the validation data depend on the seed.

        Raises:
            TaskError: the initial weights do not.
        """
        self._note_validation(look)
        if self._settings.task.step is None and look.weights == self.first.weights:
            raise TaskError(
                f"{self._subject} gives the same initial weights with the seeds {self._seed} and {seed}: its layers "
                "have seeds of their own; remove those, or give train.seeds one seed"
            )

    def _note_validation(self, look: Look) -> None:
        """Examples in another order are the same ones: they are stored once."""
        there, here = look.quality, self.first.quality
        self._other_validation |= there.sha256 != here.sha256 and there.set_sha256 != here.set_sha256


def _has_float32_variables(variant: Variant) -> bool:
    return variant.dtype_policy.variables.name == "float32"
