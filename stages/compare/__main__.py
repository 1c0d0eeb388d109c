"""`python -m stages.compare`: the verdict on every candidate, from the files of the other stages."""

from __future__ import annotations

from rich.console import Console

from stages import files, params
from stages.compare.arms import Study, load_study
from stages.compare.comparison import Comparison, as_tracking_metrics, as_tracking_tags, compare
from stages.compare.results import write_results
from stages.compare.table import render
from stages.compare.wording import verdict_sentence
from stages.errors import GateError, HalfstepError, explained
from stages.params import Params
from stages.tracking import views
from stages.tracking.completion import complete
from stages.tracking.runs import Tracker


@explained
def main() -> None:
    """Compares, writes `data/compare/`, and shows the table.

    Raises:
        GateError: `compare.gate` is set, and no candidate was adopted or an arm failed.
    """
    settings = params.load()
    tracker = Tracker(settings.tracking)
    try:
        comparison = compare(_study(settings), settings.compare)
    except HalfstepError:
        with tracker.run(views.comparison(), settings):
            raise  # so that the failure is seen in the tracking store too
    write_results(comparison)
    track(comparison, settings, tracker)
    Console().print(render(comparison))
    if settings.compare.gate:
        check_gate(comparison)


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
            views.log_comparison(
                run,
                files.COMPARE,
                as_tracking_metrics(comparison),
                as_tracking_tags(comparison),
                "\n\n".join(verdict_sentence(candidate, comparison) for candidate in comparison.candidates),
            )
        parent = run.run_id
    tracker.adopt(parent, runs)


def check_gate(comparison: Comparison) -> None:
    """Refuses a comparison in which nothing was adopted, or in which an arm failed."""
    if comparison.failed_arms:
        names = ", ".join(arm.variant for arm in comparison.failed_arms)
        raise GateError(f"compare.gate: a training of {names} failed; see data/compare/report.html")
    if not comparison.adopted:
        verdicts = ", ".join(f"{candidate.variant} {candidate.verdict}" for candidate in comparison.candidates)
        raise GateError(f"compare.gate: no candidate was adopted ({verdicts}); see data/compare/report.html")


if __name__ == "__main__":
    raise SystemExit(main())
