"""`python -m stages.profile`: measures step time, latency and memory of every variant, and traces it."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stages import files, params
from stages.distribution.cluster import from_environment
from stages.errors import ProfileError, cli_entry
from stages.locking import machine_lock, stage_lock
from stages.params import Params, ProfileParams, TrainParams
from stages.profile.max_batch import largest_batch
from stages.profile.records import ArmConfig, ArmRecord
from stages.profile.runner import Extras, measure
from stages.profile.summary import Context, summarize
from stages.profile.trace import read_trace
from stages.results.profile import LargestBatch, Protocol, write_profile
from stages.results.task import TASK_INFO, TaskInfo
from stages.results.training import finished_scores, read_metrics
from stages.tasks.spec import TaskSpec
from stages.tracking import run_logging
from stages.tracking.tracker import Tracker


@cli_entry
def main() -> None:
    """Measures the variants without a failed training, writes `data/profile/`, and logs one run per variant."""
    settings = params.load()
    _require_one_host(settings.train)
    tracker = Tracker(settings.tracking)
    variants = finished_variants(settings)
    files.PROFILE.mkdir(parents=True, exist_ok=True)  # DVC expects the folder even if every training failed
    with stage_lock("profile"), machine_lock(), ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="halfstep-")))
        runs = {name: stack.enter_context(tracker.run(run_logging.profiling(name), settings)) for name in variants}
        digests = _measure_and_write(settings, variants, scratch) if variants else {}
        for variant, run in runs.items():
            scores = finished_scores(variant, settings.train.seeds)
            name = TaskInfo.read(TASK_INFO).score_name
            run_logging.log_profile(run, files.profile_dir(variant), name, scores, digests[variant])


def _require_one_host(train: TrainParams) -> None:
    """Refuses to measure under `TF_CONFIG` or Slurm's variables: processes on several hosts cannot take turns."""
    cluster = from_environment(train.replicas)
    if cluster:
        raise ProfileError(
            f"profile measures on one host, and {cluster.source} names {cluster.hosts}: unset it, and run the stage on "
            f"a host with {train.replicas} devices, or with train.replicas and train.batch_size of one host"
        )


def finished_variants(settings: Params) -> list[str]:
    """Variants of which no training failed; `compare` reports the others."""
    seeds = settings.train.seeds
    return [name for name in settings.train.variants if not any(read_metrics(name, seed).failed for seed in seeds)]


def _measure_and_write(settings: Params, variants: list[str], scratch: Path) -> dict[str, str]:
    """Measures all arms, writes their folders, and returns the sha256 of each manifest by arm."""
    configs, baseline = _configs(settings, variants), settings.compare.baseline
    trained = _trained(baseline, settings.train.seeds) if baseline in variants else {}
    extras = Extras(scratch, trained, _training_seconds(settings, variants))
    measurement = measure(configs, baseline, settings.profile, extras)
    _print_protocol(measurement.protocol)
    records, same_weights = measurement.records, measurement.same_weights
    largest = largest_batches(configs, settings.profile, records) if settings.profile.find_max_batch else {}
    digests, word = {}, TaskInfo.read(TASK_INFO).examples_word
    for name, record in records.items():
        copy = records[files.CONTROL].times if name == baseline else None
        context = Context(measurement.protocol, measurement.trace_steps, largest.get(name), copy, word)
        digests[name] = _write(name, record, context, same_weights.get(name, {}))
    return digests


def _trained(variant: str, seeds: Sequence[int]) -> dict[int, Path]:
    """By seed, the folders of a variant's trainings; empty with `train.epochs: 0`."""
    return {seed: files.train_dir(variant, seed) for seed in seeds if not read_metrics(variant, seed).not_trained}


def _training_seconds(settings: Params, variants: list[str]) -> float:
    """Seconds of all trainings together; 0 without any, for which the stage takes its shortest time."""
    trainings = (read_metrics(name, seed) for name in variants for seed in settings.train.seeds)
    return sum(found.train_time_s or 0.0 for found in trainings)


def _configs(settings: Params, variants: list[str]) -> dict[str, ArmConfig]:
    entries = {name: settings.variants[name] for name in variants}
    if settings.compare.baseline in entries:
        entries[files.CONTROL] = settings.variants[settings.compare.baseline]
    digest = files.verify_manifest(files.PREPARED)
    spec = TaskSpec(settings.task, settings.model, settings.train, prepared_sha256=digest)
    return {name: ArmConfig(spec, entry, settings.train.seeds[0]) for name, entry in entries.items()}


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
    word, step_ms = context.examples_word, summary.metrics["step_time_ms/mean"]
    per_s = summary.metrics[f"train_{word}_per_s"]
    print(f"profile {name}: {step_ms:.2f} ms a step, {per_s:,.0f} {word}/s", flush=True)
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
