"""The exports of all trainings, each made in a process of its own, and kept for a session that goes on after a kill."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from halfstep.machine import fingerprint
from halfstep.params.schema import Params
from halfstep.results.serving import Export
from halfstep.results.training import read_metrics
from halfstep.serve.records import EXPORTING, Exported, Request
from halfstep.system import files
from halfstep.system.child import Child, Lost, serve
from halfstep.system.telling import say
from halfstep.tasks.trial import Trial


def batch_sizes_of(settings: Params) -> tuple[int, ...]:
    """The batch sizes at which formats are timed."""
    given = settings.serve.batch_sizes
    return settings.profile.inference_batch_sizes if given is None else given


def trainings_of(settings: Params) -> Iterator[tuple[str, int]]:
    """The finished trainings, those of the baseline first; without any, the baseline alone."""
    baseline = settings.compare.baseline
    names = [baseline, *(name for name in settings.train.variants if name != baseline)]
    for name in names:
        for seed in settings.train.seeds:
            metrics = read_metrics(name, seed)
            if not metrics.failed and not metrics.not_trained:
                yield name, seed
    if read_metrics(baseline, settings.train.seeds[0]).not_trained:
        yield baseline, settings.train.seeds[0]


def exports_of(settings: Params, folder: Path, threads: int, prepared: str) -> dict[tuple[str, int], Exported]:
    """The exports of all trainings, as many at once as there are cores.

    Those of an earlier session, which a kill has interrupted, are taken over.

    Args:
        settings: all parameters.
        folder: where they are kept, absolute.
        threads: of each runtime.
        prepared: sha256 of the manifest of the prepared data, whose files have been verified.
    """
    trainings = list(trainings_of(settings))
    kept = {one: Exported.kept(folder_of(folder, *one)) for one in trainings}
    exports = {one: exported for one, exported in kept.items() if exported is not None}
    left = [one for one in trainings if one not in exports]
    running = dict[Any, tuple[tuple[str, int], Child]]()
    with ExitStack() as stack:
        while left or running:
            while left and len(running) < fingerprint.usable_cores():
                one = left.pop(0)
                child = stack.enter_context(_export(settings, *one, folder, threads, prepared))
                running[child.connection] = (one, child)
            for connection in wait(list(running)):
                one, child = running.pop(connection)
                exports[one] = _answer(child, *one, settings)
                _say(*one, exports[one])
                if not exports[one].has_died:
                    exports[one].keep(folder_of(folder, *one))
    return {one: exports[one] for one in trainings}


def folder_of(folder: Path, name: str, seed: int) -> Path:
    """Where the exports of a training are kept, below the folder of all."""
    return folder / f"{name}-{seed}"


def _export(settings: Params, name: str, seed: int, folder: Path, threads: int, prepared: str) -> Child:
    """Starts the process that exports a training."""
    mine = folder_of(folder, name, seed)
    shutil.rmtree(mine, ignore_errors=True)
    mine.mkdir(parents=True)
    request = Request(
        trained=None if read_metrics(name, seed).not_trained else files.train_dir(name, seed).absolute(),
        folder=mine,
        formats=settings.serve.exported,
        examples=max(batch_sizes_of(settings)),
        threads=threads,
    )
    baseline = settings.variants[settings.compare.baseline]
    trial = replace(Trial.of(settings, name, seed, prepared), variant=baseline)
    return Child(
        f"serve {name}-{seed}",
        serve,
        (EXPORTING, trial, request),
        baseline.variables,
        preload=EXPORTING,
        python=baseline.python,
        may_have_children=trial.task.script is not None,
    )


def _answer(child: Child, name: str, seed: int, settings: Params) -> Exported:
    """What the process has exported; each format has the reason where it could not."""
    answer = child.receive(Exported, str)
    if isinstance(answer, Exported):
        return answer
    reason = f"the process of the export: {answer}" if isinstance(answer, Lost) else answer
    exports = (Export(variant=name, seed=seed, format=one, refusal=reason) for one in settings.serve.exported)
    return Exported(exports=tuple(exports), has_died=isinstance(answer, Lost))


def _say(name: str, seed: int, exported: Exported) -> None:
    for reason in dict.fromkeys(item.refusal for item in exported.exports if item.refusal is not None):
        say("serve", f"{name}, seed {seed}: {reason}")
    say("serve", f"{name}, seed {seed}: {_summary(exported.exports)}")


def _summary(exports: Sequence[Export]) -> str:
    done = [item for item in exports if item.refusal is None]
    seconds = sum(item.export_s or 0.0 for item in done)
    names = ", ".join(item.label for item in done) or "nothing"
    return f"exported to {names} in {seconds:.1f} s"
