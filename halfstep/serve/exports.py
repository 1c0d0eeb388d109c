"""The exports of all trainings, each made in a process of its own, and kept for a session that goes on after a kill."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from halfstep.machine import fingerprint
from halfstep.params.schema import Params
from halfstep.results.serving import Export
from halfstep.results.training import read_metrics
from halfstep.serve import bench
from halfstep.serve.records import EXPORTING, Exported, Request
from halfstep.system import files
from halfstep.system.child import Child, Lost, serve
from halfstep.system.telling import say
from halfstep.tasks.trial import Trial


def batch_sizes_of(settings: Params) -> tuple[int, ...]:
    """The batch sizes at which formats are timed."""
    given = settings.serve.batch_sizes
    return settings.profile.inference_batch_sizes if given is None else given


def weights_of(settings: Params) -> str:
    """The variant whose weights are exported."""
    return settings.serve.weights or settings.compare.baseline


def seeds_of(settings: Params) -> list[int]:
    """The seeds with which these weights have been trained; where nothing was trained, the first one."""
    found = {seed: read_metrics(weights_of(settings), seed) for seed in settings.train.seeds}
    if any(metrics.not_trained for metrics in found.values()):
        return [settings.train.seeds[0]]
    return [seed for seed, metrics in found.items() if not metrics.failed]


def exports_of(settings: Params, folder: Path, prepared: str) -> dict[int, Exported]:
    """The exports of the trainings, by seed, as many at once as there are cores.

    Those of an earlier session, which a kill has interrupted, are taken over.

    Args:
        settings: all parameters.
        folder: where they are kept, absolute.
        prepared: sha256 of the manifest of the prepared data, whose files have been verified.
    """
    seeds = seeds_of(settings)
    kept = {seed: Exported.kept(folder_of(folder, seed)) for seed in seeds}
    exports = {seed: exported for seed, exported in kept.items() if exported is not None}
    left = [seed for seed in seeds if seed not in exports]
    running = dict[Any, tuple[int, Child]]()
    with ExitStack() as stack:
        while left or running:
            while left and len(running) < fingerprint.usable_cores():
                seed = left.pop(0)
                child = stack.enter_context(_export(settings, seed, folder, prepared))
                running[child.connection] = (seed, child)
            for connection in wait(list(running)):
                seed, child = running.pop(connection)
                exports[seed] = _answer(child, seed, settings)
                _say(weights_of(settings), seed, exports[seed])
                if not exports[seed].has_died:
                    exports[seed].keep(folder_of(folder, seed))
    return {seed: exports[seed] for seed in seeds}


def folder_of(folder: Path, seed: int) -> Path:
    """Where the exports of a training are kept, below the folder of all."""
    return folder / f"{seed}"


def _export(settings: Params, seed: int, folder: Path, prepared: str) -> Child:
    """Starts the process that exports a training."""
    name, mine = weights_of(settings), folder_of(folder, seed)
    shutil.rmtree(mine, ignore_errors=True)
    mine.mkdir(parents=True)
    request = Request(
        trained=None if read_metrics(name, seed).not_trained else files.train_dir(name, seed).absolute(),
        folder=mine,
        formats=settings.serve.exported,
        examples=max(*batch_sizes_of(settings), bench.RING),
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


def _answer(child: Child, seed: int, settings: Params) -> Exported:
    """What the process has exported; each format has the reason where it could not."""
    answer = child.receive(Exported, str)
    if isinstance(answer, Exported):
        return answer
    reason = f"the process of the export: {answer}" if isinstance(answer, Lost) else answer
    exports = (
        Export(variant=weights_of(settings), seed=seed, format=one, refusal=reason) for one in settings.serve.exported
    )
    return Exported(exports=tuple(exports), has_died=isinstance(answer, Lost))


def _say(name: str, seed: int, exported: Exported) -> None:
    said = (item.refusal or (f"{item.label}: {item.note}" if item.note else None) for item in exported.exports)
    for text in dict.fromkeys(filter(None, said)):
        say("serve", f"{name}, seed {seed}: {text}")
    say("serve", f"{name}, seed {seed}: {_summary(exported.exports)}")


def _summary(exports: Sequence[Export]) -> str:
    done = [item for item in exports if item.refusal is None]
    seconds = sum(item.export_s or 0.0 for item in done)
    names = ", ".join(item.label for item in done) or "nothing"
    return f"exported to {names} in {seconds:.1f} s"
