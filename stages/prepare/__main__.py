"""`python -m stages.prepare`: prepares the data of the task in `data/prepared/`, and checks the task."""

from __future__ import annotations

from stages.supervision import supervise

supervise(__name__)  # before anything large is imported

from stages.imports import quick_imports

with quick_imports():
    from stages import files, params
    from stages.cli import cli_entry, run
    from stages.inputs.snapshot import Snapshot
    from stages.locking import stage_lock
    from stages.params import Params, quality_margin_for
    from stages.params.margin import ACCURACY
    from stages.params.measures import measures_of
    from stages.prepare.images.pipeline import prepare
    from stages.prepare.images.reports import conflicts_line, summary_line
    from stages.prepare.kept import kept_if_inputs_change
    from stages.results.prepared import PREPARED_INFO, PreparedInfo
    from stages.results.task import TASK_INFO, TaskInfo, resolved
    from stages.stats.sample_size import too_few_examples
    from stages.tracking import run_logging
    from stages.tracking.tracker import Tracker


@cli_entry
def main() -> None:
    """Prepares the images that `params.yaml` names, or checks a task of the user's own, and prints a summary."""
    inputs = Snapshot("prepare")
    settings = params.load()
    with stage_lock("prepare"):
        with Tracker(settings.tracking).run(run_logging.preparation(), settings) as run:
            with kept_if_inputs_change(settings, inputs) as is_there:
                if not is_there:
                    _prepare(settings)
            run_logging.log_preparation(run, files.PREPARED, files.verify_manifest(files.PREPARED))
        for line in _summary(settings):
            print(line)


def _prepare(settings: Params) -> None:
    if settings.task.uses_data_and_model:
        prepare(settings.data, directory=files.PREPARED)
        return
    if settings.task.script is not None:
        from stages.prepare.script_task import prepare_script

        info = prepare_script(settings, files.PREPARED)
        is_declared = settings.task.score is not None and info.speed_only is None
    else:
        from stages.prepare.own_task import prepare_task

        info, is_declared = prepare_task(settings, files.PREPARED), True
    if is_declared and settings.train.epochs != 0:
        quality_margin_for(info.score_name, settings.compare)  # it must be declared, before any training


def _summary(settings: Params) -> list[str]:
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
    found = [conflicts_line(files.PREPARED), None if info.synthetic else too_few]
    return [summary_line(info), *(f"prepare: {line}" for line in found if line)]


if __name__ == "__main__":
    raise SystemExit(run(main))
