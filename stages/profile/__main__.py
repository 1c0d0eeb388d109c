"""`python -m stages.profile`: step times, latencies, traces and memory of every variant, measured in turns."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from stages import files, params
from stages.errors import explained
from stages.locking import only_writer
from stages.params import Params, ProfileParams
from stages.profile.alone import alone_on_machine
from stages.profile.conductor import Extras, measure
from stages.profile.memory import LargestBatch, largest_batch
from stages.profile.records import ArmRecord, Protocol, Task
from stages.profile.results import trace_in, write_results
from stages.profile.summary import Circumstances, summarize
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
    with only_writer("profile"), alone_on_machine(), ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="halfstep-")))
        runs = {name: stack.enter_context(tracker.run(views.profiling(name), settings)) for name in variants}
        digests = _measure_and_write(settings, variants, scratch) if variants else {}
        for variant, run in runs.items():
            accuracies = test_accuracies(variant, settings.train.seeds)
            views.log_profile(run, files.profile_dir(variant), accuracies, digests[variant])


def _measure_and_write(settings: Params, variants: list[str], scratch: Path) -> dict[str, str]:
    """Measures all arms, writes their folders, and returns the sha256 of each manifest."""
    tasks, baseline = _tasks(settings, variants), settings.compare.baseline
    trained = {name: files.train_dir(name, settings.train.seeds[0]) for name in variants if name != baseline}
    extras = Extras(frozenset(variants), scratch, trained if baseline in variants else {})
    measurement = measure(tasks, baseline, settings.profile, extras)
    _say_how(measurement.protocol)
    largest = largest_batches(tasks, settings.profile, measurement.records) if settings.profile.find_max_batch else {}
    circumstances = {
        name: Circumstances(
            measurement.protocol, settings.profile.trace_steps, measurement.same_weights.get(name), largest.get(name)
        )
        for name in tasks
    }
    return {name: _write(name, record, circumstances[name], settings) for name, record in measurement.records.items()}


def largest_batches(
    tasks: Mapping[str, Task], profile: ProfileParams, records: Mapping[str, ArmRecord]
) -> dict[str, LargestBatch]:
    """The largest batch that still trains, of each variant; the control would only say it again."""
    return {
        name: largest_batch(task, profile, records[name].configuration["device"])
        for name, task in tasks.items()
        if name != files.CONTROL
    }


def finished_variants(settings: Params) -> list[str]:
    """The variants whose every training finished; `compare` says what became of the others."""
    seeds = settings.train.seeds
    return [name for name in settings.train.variants if len(test_accuracies(name, seeds)) == len(seeds)]


def _tasks(settings: Params, variants: list[str]) -> dict[str, Task]:
    entries = {name: settings.variants[name] for name in variants}
    if settings.compare.baseline in entries:
        entries[files.CONTROL] = settings.variants[settings.compare.baseline]
    seed, checked = settings.train.seeds[0], files.check_manifest(files.PREPARED)
    return {name: Task(settings.model, settings.train, entry, seed, checked) for name, entry in entries.items()}


def _write(name: str, record: ArmRecord, circumstances: Circumstances, settings: Params) -> str:
    entry = settings.variants[settings.compare.baseline if name == files.CONTROL else name]
    path, trace = None, None
    if record.trace is not None:
        path = trace_in(record.trace.directory)
        trace = read_trace(path, record.trace.graph_dtypes)
    summary = summarize(name, entry, record, circumstances, trace)
    _say(name, summary["metrics"])
    return write_results(record, summary, path, name)


def _say_how(protocol: Protocol) -> None:
    ended_by = {
        "target_precision": "all intervals were narrow enough (profile.target_precision)",
        "max_seconds": "the time was up (profile.max_seconds)",
        "rounds": "all rounds were played (profile.rounds)",
    }
    print(
        f"profile: {protocol.rounds} rounds in {protocol.processes} processes, "
        f"{protocol.timing_seconds:.0f} s of timing; {ended_by[protocol.ended_by]}"
    )
    for warning in protocol.warnings:
        print(f"profile: warning: {warning}", flush=True)


def _say(name: str, metrics: dict[str, Any]) -> None:
    step, images = metrics["step_time_ms/mean"], metrics["train_images_per_s"]
    print(f"profile {name}: {step:.2f} ms a step, {images:,.0f} images/s", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
