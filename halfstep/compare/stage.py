"""Judges, writes `data/compare/`, tells MLflow, and prints."""

from __future__ import annotations

import sys
from contextlib import suppress

from halfstep import files
from halfstep.compare.judge import document_of
from halfstep.compare.judging import compare, found_ratios
from halfstep.compare.metrics import dvc_metrics, tracking_metrics, tracking_tags
from halfstep.compare.report.html import render_report
from halfstep.compare.report.markdown import description
from halfstep.compare.report.tables import write_plots
from halfstep.compare.report.terminal import render
from halfstep.compare.study import Study, load_study, with_margin
from halfstep.errors import HalfstepError, TrackingError
from halfstep.inputs.snapshot import Snapshot
from halfstep.params import Params
from halfstep.results.comparison import COMPARISON, Comparison
from halfstep.results.occasions import write_occasion
from halfstep.terminal import wide_console
from halfstep.tracking import run_logging, store
from halfstep.tracking.backfill import IncompleteRunError, backfill
from halfstep.tracking.tracker import Tracker


def compare_and_track(settings: Params, inputs: Snapshot) -> Comparison:
    """Judges what the other stages wrote, writes `data/compare/`, logs it, and prints the table."""
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
