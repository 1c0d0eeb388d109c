"""`python -m stages.compare`: the verdict on every candidate, from the files of the other stages."""

from __future__ import annotations

from rich.console import Console

from stages import files, params
from stages.compare.arms import Study
from stages.compare.comparison import Comparison, compare
from stages.compare.contents import as_json, as_tracking_metrics, as_tracking_tags
from stages.compare.figures import figures
from stages.compare.gate import check_gate
from stages.compare.loading import load_study
from stages.compare.markdown import description
from stages.compare.results import write_results
from stages.compare.table import render
from stages.compare.winner import register_winner
from stages.errors import HalfstepError, explained
from stages.locking import only_writer
from stages.params import Params
from stages.tracking import views
from stages.tracking.completion import complete
from stages.tracking.runs import Tracker


@explained
def main() -> None:
    """Compares, writes `data/compare/`, logs, and shows the table; what refuses comes last.

    Raises:
        GateError: `compare.gate` is set, and no candidate was adopted or an arm failed.
    """
    settings = params.load()
    with only_writer("compare"):
        comparison = _compare_and_track(settings)
    if settings.compare.gate:
        check_gate(comparison)


def _compare_and_track(settings: Params) -> Comparison:
    tracker = Tracker(settings.tracking)
    try:
        comparison = compare(_study(settings), settings.compare)
    except HalfstepError:
        with tracker.run(views.comparison(), settings):
            raise  # so that the failure is seen in the tracking store too
    write_results(comparison)
    track(comparison, settings, tracker)
    Console().print(render(comparison))
    if settings.compare.register:
        print(register_winner(settings.compare.register, comparison, tracker))
    return comparison


def _study(settings: Params) -> Study:
    return load_study(
        settings.compare.baseline,
        settings.train.variants,
        settings.train.seeds,
        settings.profile.inference_batch_sizes,
    )


def track(comparison: Comparison, settings: Params, tracker: Tracker) -> None:
    """Sees to it that every run is in the tracking store, and makes the `compare` run the parent of the others.

    The same result is not logged twice.
    """
    runs = complete(tracker, settings)
    parent = tracker.find(files.sha256_file(files.COMPARE / "comparison.json"), views.comparison())
    if parent is None:
        with tracker.run(views.comparison(), settings) as run:
            for name, figure in figures(comparison).items():
                run.figure(figure, f"figures/{name}.png")
            views.log_comparison(
                run,
                files.COMPARE,
                as_tracking_metrics(comparison),
                as_tracking_tags(comparison),
                description(as_json(comparison)),
            )
        parent = run.run_id
    tracker.adopt(parent, runs)


if __name__ == "__main__":
    raise SystemExit(main())
