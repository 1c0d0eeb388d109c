"""`python -m stages.profile`: step times, latencies, traces and memory of every variant, measured in turns."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from stages import files, params
from stages.errors import explained
from stages.params import Params
from stages.profile.conductor import measure
from stages.profile.records import ArmRecord, Task
from stages.profile.results import trace_in, write_results
from stages.profile.summary import summarize
from stages.profile.trace import read_trace
from stages.tracking import views
from stages.tracking.completion import test_accuracies
from stages.tracking.runs import Tracker


@explained
def main() -> None:
    """Measures the variants whose trainings finished, writes `data/profile/`, and logs a run for each variant."""
    settings = params.load()
    tracker = Tracker(settings.tracking)
    variants = finished_variants(settings)
    files.PROFILE.mkdir(parents=True, exist_ok=True)  # also where every training failed: DVC expects its output
    with ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="halfstep-"))
        runs = {name: stack.enter_context(tracker.run(views.profiling(name), settings)) for name in variants}
        tasks = _tasks(settings, variants)
        records = measure(tasks, settings.profile, traced=frozenset(variants), scratch=Path(scratch)) if tasks else {}
        digests = {name: _write(name, record, settings) for name, record in records.items()}
        for variant, run in runs.items():
            accuracies = test_accuracies(variant, settings.train.seeds)
            views.log_profile(run, files.profile_dir(variant), accuracies, digests[variant])


def finished_variants(settings: Params) -> list[str]:
    """The variants whose every training finished; `compare` says what became of the others."""
    seeds = settings.train.seeds
    return [name for name in settings.train.variants if len(test_accuracies(name, seeds)) == len(seeds)]


def _tasks(settings: Params, variants: list[str]) -> dict[str, Task]:
    entries = {name: settings.variants[name] for name in variants}
    if settings.compare.baseline in entries:
        entries[files.CONTROL] = settings.variants[settings.compare.baseline]
    seed = settings.train.seeds[0]
    return {name: Task(settings.model, settings.train, entry, seed) for name, entry in entries.items()}


def _write(name: str, record: ArmRecord, settings: Params) -> str:
    entry = settings.variants[settings.compare.baseline if name == files.CONTROL else name]
    path, trace = None, None
    if record.trace is not None:
        path = trace_in(record.trace.directory)
        trace = read_trace(path, record.trace.graph_dtypes)
    summary = summarize(name, entry, record, settings.profile, trace)
    _say(name, summary["metrics"])
    return write_results(record, summary, path, name)


def _say(name: str, metrics: dict[str, Any]) -> None:
    step, images = metrics["step_time_ms/mean"], metrics["train_images_per_s"]
    print(f"profile {name}: {step:.2f} ms a step, {images:,.0f} images/s", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
