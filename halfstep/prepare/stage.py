"""Prepares a task of any kind, and says what it is."""

from __future__ import annotations

from halfstep import files
from halfstep.params import Params, quality_margin_for
from halfstep.params.margin import ACCURACY
from halfstep.params.measures import measures_of
from halfstep.prepare.images.pipeline import prepare
from halfstep.prepare.images.reports import conflicts_line, summary_line
from halfstep.results.prepared import PREPARED_INFO, PreparedInfo
from halfstep.results.task import TASK_INFO, TaskInfo, resolved
from halfstep.stats.sample_size import too_few_examples


def prepare_task_of(settings: Params) -> None:
    """Prepares the images, or checks the function or the script."""
    if settings.task.uses_data_and_model:
        prepare(settings.data, directory=files.PREPARED)
        return
    if settings.task.script is not None:
        from halfstep.prepare.script_task import prepare_script

        info = prepare_script(settings, files.PREPARED)
        is_declared = settings.task.score is not None and info.speed_only is None
    else:
        from halfstep.prepare.own_task import prepare_task

        info, is_declared = prepare_task(settings, files.PREPARED), True
    if is_declared and settings.train.epochs != 0:
        quality_margin_for(info.score_name, settings.compare)  # it must be declared, before any training


def summary(settings: Params) -> list[str]:
    """What was prepared, a line each."""
    settings = resolved(settings)
    train, task = settings.train, TaskInfo.read(TASK_INFO)
    before, sizes = settings.variants[settings.compare.baseline], settings.profile.inference_batch_sizes
    candidates = [settings.variants[name] for name in train.variants if name != settings.compare.baseline]
    verdicts = sum(len(measures_of(entry, before, sizes)) for entry in candidates)
    too_few = None
    is_known = task.script is None or task.score_name == ACCURACY
    if train.epochs and verdicts and is_known:  # with the baseline alone, nothing is to be shown
        margin = quality_margin_for(task.score_name, settings.compare)
        too_few = too_few_examples(task.examples, task.score_name, margin, len(train.seeds), verdicts)
    if not task.has_classes:
        return [task.summary_line, *([f"prepare: {too_few}"] if too_few else [])]
    info = PreparedInfo.read(PREPARED_INFO)
    lines = [conflicts_line(files.PREPARED), None if info.synthetic else too_few]
    return [summary_line(info), *(f"prepare: {line}" for line in lines if line)]
