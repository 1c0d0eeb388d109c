"""`python -m stages.compare`: the verdict on every candidate, from the files of the other stages."""

from __future__ import annotations

from stages.supervision import supervise

supervise(__name__)  # before anything large is imported

import sys
from contextlib import suppress

from stages.imports import quick_imports

with quick_imports():
    from stages import files, params
    from stages.cli import cli_entry, run
    from stages.compare.gate import check_gate
    from stages.compare.judge import document_of
    from stages.compare.judging import compare, found_ratios
    from stages.compare.metrics import dvc_metrics, tracking_metrics, tracking_tags
    from stages.compare.report.html import render_report
    from stages.compare.report.markdown import description
    from stages.compare.report.tables import write_plots
    from stages.compare.report.terminal import render
    from stages.compare.study import Study, load_study, with_margin
    from stages.errors import HalfstepError, TrackingError
    from stages.inputs.snapshot import Snapshot
    from stages.locking import stage_lock
    from stages.params import Params
    from stages.results.comparison import COMPARISON, Comparison
    from stages.results.occasions import write_occasion
    from stages.results.task import resolved
    from stages.terminal import wide_console
    from stages.tracking import run_logging, store
    from stages.tracking.backfill import IncompleteRunError, backfill
    from stages.tracking.tracker import Tracker


@cli_entry
def main() -> None:
    """Compares, writes `data/compare/`, logs, and prints the table. The gate is checked last.

    Raises:
        GateError: with `compare.gate`, no candidate was adopted, or a training failed.
    """
    inputs = Snapshot("compare")
    settings = resolved(params.load())
    with stage_lock("compare"):
        comparison = _compare_and_track(settings, inputs)
    if settings.compare.gate:
        check_gate(comparison)


def _compare_and_track(settings: Params, inputs: Snapshot) -> Comparison:
    tracker, train = Tracker(settings.tracking), settings.train
    batch_sizes = settings.profile.inference_batch_sizes
    try:
        study = load_study(settings.compare.baseline, train.variants, train.seeds, batch_sizes)
        judging = compare(study, with_margin(settings.compare, study))
        comparison = document_of(judging)
        inputs.require_unchanged()
    except HalfstepError:
        with suppress(TrackingError), tracker.run(run_logging.comparison(), settings):
            raise  # so that the tracking store shows the failure too
        raise  # the store has failed as well: what it says would hide the first error
    write_results(comparison, study)
    profile = study.baseline.profile
    write_occasion(profile.summary.protocol if profile else None, judging.void, found_ratios(judging))
    track(comparison, study, settings, tracker)
    wide_console().print(render(comparison))
    return comparison


def write_results(comparison: Comparison, study: Study) -> None:
    """Writes comparison.json, metrics.json, plots/*.csv and report.html below `data/compare/`."""
    comparison.write(COMPARISON)
    files.write_json(files.COMPARE / "metrics.json", dvc_metrics(study, comparison))
    write_plots(comparison, study)
    files.write_text(files.REPORT, render_report(comparison, study))


def track(result: Comparison, study: Study, settings: Params, tracker: Tracker) -> bool:
    """Logs every run that the store does not have, and makes the `compare` run their parent, which the report names.

    The same result is logged once. If the store fails, one line reports it, and the next `dvc repro` runs the stage
    again: the results are in the files, so the stage succeeds.

    Returns:
        Whether everything is logged.
    """
    try:
        _log_missing_runs(result, study, settings, tracker)
    except IncompleteRunError:
        store.log_again()
    except TrackingError as error:
        store.log_again()
        print(f"{error}; the results are in the files, and the next `dvc repro` logs them", file=sys.stderr)
    else:
        return True
    return False


def _log_missing_runs(result: Comparison, study: Study, settings: Params, tracker: Tracker) -> None:
    runs = backfill(tracker, settings)
    parent = tracker.find(files.sha256_file(COMPARISON), run_logging.comparison())
    if parent is None:
        with tracker.run(run_logging.comparison(), settings) as run:
            files.write_text(files.REPORT, render_report(result, study, run.run_id))
            run_logging.log_comparison(
                run, files.COMPARE, tracking_metrics(result), tracking_tags(result), description(result)
            )
        if run.is_incomplete:
            raise IncompleteRunError("the run of `compare` is incomplete")
        parent = run.run_id
    else:
        files.write_text(files.REPORT, render_report(result, study, parent))
    tracker.set_parent(parent, runs)


if __name__ == "__main__":
    raise SystemExit(run(main))
