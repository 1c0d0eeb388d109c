"""Checks a task of the user's own before any training, under every variant. Does not import TensorFlow."""

from __future__ import annotations

from pathlib import Path

from halfstep import files
from halfstep.errors import TaskError
from halfstep.params import Params, Variant
from halfstep.prepare.trials import TrialFailure, run_trial, servers, try_candidates
from halfstep.results.task import TASK_INFO, TaskInfo
from halfstep.tasks.spec import TaskSpec

_MODULE = "halfstep.prepare.try_task"  # it imports TensorFlow


def prepare_task(settings: Params, directory: Path) -> TaskInfo:
    """Builds, tests and trains the task for one step under each variant, and writes `task.json` and the manifest.

    A candidate under which it fails is left out, and said so.

    Args:
        settings: all parameters.
        directory: folder of the prepared data, which the task's own `prepare` fills first, where there is one.

    Raises:
        TaskError: the task cannot be used; the message says why.
    """
    variants, baseline, seed = settings.variants, settings.compare.baseline, settings.train.seeds[0]
    specs = {name: TaskSpec.of(settings, name, directory=directory) for name in settings.train.variants}
    steps_by_batch: dict[int, int] = {}
    lost_inputs: dict[str, None] = {}  # in their order

    def try_one(name: str, entry: Variant) -> TrialFailure | None:
        result = run_trial(f"{name}-{seed}", _MODULE, entry, specs[name], seed, False)
        if isinstance(result, TrialFailure):
            return result
        steps_by_batch[specs[name].train.batch_size] = result.steps
        lost_inputs.update(dict.fromkeys(result.lost_inputs))
        return None

    with servers(_MODULE, (variants[name] for name in settings.train.variants)):
        info = run_trial(f"{baseline}-{seed}", _MODULE, variants[baseline], specs[baseline], seed, True)
        if isinstance(info, TrialFailure):
            raise TaskError(str(info))
        candidates = try_candidates(settings, try_one)
    for line in lost_inputs:
        print(f"prepare: {settings.task.shown}: {line}", flush=True)
    steps_by_batch.pop(specs[baseline].train.batch_size, None)
    info = info.model_copy(update=vars(candidates) | {"steps_by_batch": steps_by_batch})
    info.write(directory / TASK_INFO.name)
    files.write_manifest(directory)
    return info
