"""`python -m stages.profile`: measures step time, latency and memory of every variant, and traces it."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stages import files, params
from stages.errors import ProfileError, cli_entry
from stages.locking import machine_lock, stage_lock
from stages.params import Params, ProfileParams
from stages.profile.max_batch import largest_batch
from stages.profile.records import ArmConfig, ArmRecord
from stages.profile.runner import Extras, measure
from stages.profile.summary import Context, summarize
from stages.profile.trace import read_trace
from stages.results.profile import LargestBatch, Protocol, write_profile
from stages.results.training import METRICS, TrainingMetrics, finished_accuracies
from stages.tracking import run_logging
from stages.tracking.tracker import Tracker


@cli_entry
def main() -> None:
    """Measures the variants whose trainings finished, writes `data/profile/`, and logs one run per variant."""
    settings = params.load()
    tracker = Tracker(settings.tracking)
    variants = finished_variants(settings)
    files.PROFILE.mkdir(parents=True, exist_ok=True)  # DVC expects the folder even if every training failed
    with stage_lock("profile"), machine_lock(), ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="halfstep-")))
        runs = {name: stack.enter_context(tracker.run(run_logging.profiling(name), settings)) for name in variants}
        digests = _measure_and_write(settings, variants, scratch) if variants else {}
        for variant, run in runs.items():
            accuracies = finished_accuracies(variant, settings.train.seeds)
            run_logging.log_profile(run, files.profile_dir(variant), accuracies, digests[variant])


def finished_variants(settings: Params) -> list[str]:
    """Variants for which the trainings with all seeds finished; `compare` reports the others."""
    seeds = settings.train.seeds
    return [name for name in settings.train.variants if len(finished_accuracies(name, seeds)) == len(seeds)]


def _measure_and_write(settings: Params, variants: list[str], scratch: Path) -> dict[str, str]:
    """Measures all arms, writes their folders, and returns the sha256 of each manifest by arm."""
    configs, baseline = _configs(settings, variants), settings.compare.baseline
    trained = {seed: files.train_dir(baseline, seed) for seed in settings.train.seeds} if baseline in variants else {}
    extras = Extras(scratch, trained, _training_seconds(settings, variants))
    measurement = measure(configs, baseline, settings.profile, extras)
    _print_protocol(measurement.protocol)
    records, same_weights = measurement.records, measurement.same_weights
    largest = largest_batches(configs, settings.profile, records) if settings.profile.find_max_batch else {}
    digests = {}
    for name, record in records.items():
        copy = records[files.CONTROL].times if name == baseline else None
        context = Context(measurement.protocol, measurement.trace_steps, largest.get(name), copy)
        digests[name] = _write(name, record, context, same_weights.get(name, {}))
    return digests


def _training_seconds(settings: Params, variants: list[str]) -> float:
    trainings = (
        TrainingMetrics.read(files.train_dir(name, seed) / METRICS)
        for name in variants
        for seed in settings.train.seeds
    )
    return sum(found.train_time_s for found in trainings)


def _configs(settings: Params, variants: list[str]) -> dict[str, ArmConfig]:
    entries = {name: settings.variants[name] for name in variants}
    if settings.compare.baseline in entries:
        entries[files.CONTROL] = settings.variants[settings.compare.baseline]
    seed, verified_sha256 = settings.train.seeds[0], files.verify_manifest(files.PREPARED)
    return {
        name: ArmConfig(settings.model, settings.train, entry, seed, verified_sha256) for name, entry in entries.items()
    }


def largest_batches(
    configs: Mapping[str, ArmConfig], profile: ProfileParams, records: Mapping[str, ArmRecord]
) -> dict[str, LargestBatch]:
    """The largest batch that trains, by variant; the control's is that of the baseline, so it is left out."""
    return {
        name: largest_batch(config, profile, records[name].settings.configuration.device)
        for name, config in configs.items()
        if name != files.CONTROL
    }


def _write(name: str, record: ArmRecord, context: Context, same_weights: Mapping[int, NDArray[np.float32]]) -> str:
    path, trace = None, None
    if record.trace is not None:
        path = find_trace(record.trace.directory)
        trace = read_trace(path, record.trace.graph_dtypes)
    summary = summarize(name, record, context, trace)
    step_ms, images_per_s = (summary.metrics[key] for key in ("step_time_ms/mean", "train_images_per_s"))
    print(f"profile {name}: {step_ms:.2f} ms a step, {images_per_s:,.0f} images/s", flush=True)
    return write_profile(name, summary, record.times, path, same_weights)


def find_trace(directory: Path) -> Path:
    """Finds the trace below a folder; the profiler chooses the names.

    Raises:
        ProfileError: the number of traces is not 1.
    """
    found = list(directory.rglob("*.xplane.pb"))
    if len(found) != 1:
        raise ProfileError(f"the profiler wrote {len(found)} traces instead of one; run `dvc repro` again")
    return found[0]


def _print_protocol(protocol: Protocol) -> None:
    print(
        f"profile: {protocol.rounds} rounds in {protocol.processes} processes, "
        f"{protocol.timing_seconds:.0f} s of timing; {protocol.ended_by_text}"
    )
    for warning in protocol.warnings:
        print(f"profile: warning: {warning}", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
