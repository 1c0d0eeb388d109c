"""The stage: what it reads, measures, writes and logs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from halfstep.errors import HalfstepError
from halfstep.inputs.snapshot import Snapshot
from halfstep.params.schema import Params
from halfstep.profile import extras, repeats, runner
from halfstep.profile.confirming import Chooser, confirm
from halfstep.profile.max_batch import largest_batch
from halfstep.profile.records import ArmRecord, Measurement
from halfstep.profile.repeats import Repeats
from halfstep.profile.summary import summarize
from halfstep.profile.trace import Trace, read_trace
from halfstep.results.confirmation import CONFIRMATION
from halfstep.results.profile import LargestBatch, write_profile
from halfstep.results.task import TASK_INFO, TaskInfo, resolved
from halfstep.results.training import finished_scores, read_metrics
from halfstep.system import files
from halfstep.system.fork_server import stop_servers
from halfstep.tasks.trial import Trial
from halfstep.tracking import run_logging
from halfstep.tracking.provenance import commit_text
from halfstep.tracking.tracker import Tracker


def run(settings: Params, inputs: Snapshot | None = None, choose: Chooser | None = None) -> None:
    """Measures the variants without a failed training, writes `data/profile/`, and logs one run per variant.

    Args:
        settings: all parameters.
        inputs: what the stage reads.
        choose: from what was measured, a change that would show whether the cause that the traces name is one.

    Raises:
        ChangedInputsError: `inputs` are not any more as they were.
        HalfstepError: a stage before this one has not run, a variant cannot be measured, or the results not written.
    """
    settings = resolved(settings)
    tracker = Tracker(settings.tracking)
    variants = finished_variants(settings)
    files.PROFILE.mkdir(parents=True, exist_ok=True)  # DVC expects the folder even if every training failed
    with ExitStack() as stack:
        runs = {name: stack.enter_context(tracker.run(run_logging.profiling(name), settings)) for name in variants}
        if not variants:
            return
        trials, baseline = _trials(settings, variants), settings.compare.baseline
        trained = _trained(baseline, settings.train.seeds) if baseline in variants else {}
        prepared = next(iter(trials.values())).prepared_sha256
        inputs_of = repeats.inputs_of(prepared, arms=sorted(trials))
        key = repeats.measurement_key(settings, inputs_of)
        asked = repeats.amounts(settings.profile, settings.compare.min_speedup)
        kept = stack.enter_context(repeats.opened(key, asked, repeats.digests_of(trained)))
        occasion = {
            "occasion": settings.profile.occasion,
            "measurement": repeats.measurement_key(settings, inputs_of, with_occasion=False)[:16],
        }
        CONFIRMATION.unlink(missing_ok=True)
        digests = _measure_and_write(settings, trials, trained, kept, occasion, choose)
        if inputs:
            inputs.require_unchanged("with the former inputs, a run takes over what was timed")
        for variant, run in runs.items():
            scores = finished_scores(variant, settings.train.seeds)
            name = TaskInfo.read(TASK_INFO).score_name
            run_logging.log_profile(run, files.profile_dir(variant), name, scores, digests[variant])
        kept.finish()


def finished_variants(settings: Params) -> list[str]:
    """Variants of which no training failed; `compare` reports the others."""
    seeds = settings.train.seeds
    return [name for name in settings.train.variants if not any(read_metrics(name, seed).failed for seed in seeds)]


def _measure_and_write(
    settings: Params,
    trials: Mapping[str, Trial],
    trained: Mapping[int, Path],
    kept: Repeats,
    occasion: Mapping[str, str | None],
    choose: Chooser | None,
) -> dict[str, str]:
    """Measures all arms, writes their folders, and returns the sha256 of each manifest by arm."""
    context = runner.MeasurementContext(
        trained=trained,
        trainings_s=_training_seconds(settings, [name for name in trials if files.is_variant(name)]),
        min_speedup=settings.compare.min_speedup,
        keeps_servers=settings.profile.confirm is not False,
    )
    measurement = runner.measure(trials, settings.compare.baseline, settings.profile, context, kept)
    origin = {"measured_at": f"{datetime.now(UTC):%Y-%m-%d %H:%M}", "commit": commit_text()}
    measurement.ended = measurement.protocol.model_copy(update={**occasion, **origin})
    _print_protocol(measurement)
    largest = _largest_batches(trials, settings, measurement, kept)
    digests = {name: _write(name, measurement, largest.get(name)) for name in measurement.records}
    if choose is not None and settings.profile.confirm is not False:
        _confirm(choose, settings, trials, measurement, kept)
    stop_servers()  # a script puts back what it wrote
    return digests


def _confirm(
    choose: Chooser, settings: Params, trials: Mapping[str, Trial], measurement: Measurement, kept: Repeats
) -> None:
    """Tries the cause that the traces name, if it is a set of layers; what fails there is a warning.

    Where nothing can be compared, `compare` says why.
    """
    try:
        change = choose(settings)
    except HalfstepError:
        return
    try:
        tried = change and confirm(change, trials, settings, measurement, kept)
    except HalfstepError as error:
        print(f"profile: warning: the cause that the traces name was not tried ({error})", flush=True)
        return
    if tried:
        tried.write(CONFIRMATION)


def _trained(variant: str, seeds: Sequence[int]) -> dict[int, Path]:
    """By seed, the folders of a variant's trainings; empty with `train.epochs: 0`."""
    return {seed: files.train_dir(variant, seed) for seed in seeds if not read_metrics(variant, seed).not_trained}


def _training_seconds(settings: Params, variants: list[str]) -> float:
    """Seconds of all trainings together; 0 without any, for which the stage takes its shortest time."""
    trainings = (read_metrics(name, seed) for name in variants for seed in settings.train.seeds)
    return sum(training.train_time_s or 0.0 for training in trainings)


def _trials(settings: Params, variants: list[str]) -> dict[str, Trial]:
    baseline, variant_by_arm = settings.compare.baseline, {name: name for name in variants}
    if baseline in variants:
        variant_by_arm[files.CONTROL] = baseline
    digest = files.verify_manifest(files.PREPARED)
    return {
        name: replace(Trial.of(settings, variant, settings.train.seeds[0], digest), name=name)
        for name, variant in variant_by_arm.items()
    }


def _largest_batches(
    trials: Mapping[str, Trial], settings: Params, measurement: Measurement, kept: Repeats
) -> dict[str, LargestBatch]:
    """With `profile.find_max_batch`, the largest batch that trains, by variant; what an earlier session found stays.

    The control's is that of the baseline, so it is left out, and so are candidates that have a batch of their own.
    """
    largest, profile = dict(kept.largest), settings.profile
    for name, trial in trials.items() if profile.find_max_batch else ():
        record = measurement.records[name]
        has_own = trial.variant.batch_size is not None and name != settings.compare.baseline
        if name == files.CONTROL or has_own or name in largest or extras.LARGEST_BATCH in record.failed:
            continue
        try:
            largest[name] = largest_batch(trial, profile, record.settings.configuration.device)
            kept.keep_largest(largest)
        except HalfstepError as error:
            extras.failed(record, name, extras.LARGEST_BATCH, error)
    return largest


def _write(name: str, measurement: Measurement, largest: LargestBatch | None) -> str:
    record, word = measurement.records[name], TaskInfo.read(TASK_INFO).examples_word
    trace = _read_trace(name, record)
    summary = summarize(name, measurement, trace, largest, word)
    late = [line for line in extras.warnings(name, record) if line not in measurement.protocol.warnings]
    own = tuple(line.removeprefix(f"{name}: ") for line in late)
    summary = summary.model_copy(update={"warnings": (*summary.warnings, *own)})
    path = None if trace is None or record.trace is None else extras.find_trace(record.trace.directory)
    same_weights = {seed: np.load(file, allow_pickle=False) for seed, file in record.same_weights.items()}
    return write_profile(name, summary, record.times, path, same_weights, record.audit)


def _read_trace(name: str, record: ArmRecord) -> Trace | None:
    """The trace of an arm; a trace that cannot be read is a warning."""
    if record.trace is None:
        return None
    try:
        return read_trace(extras.find_trace(record.trace.directory), record.trace.graph_dtypes)
    except HalfstepError as error:
        extras.failed(record, name, extras.TRACE, error)
        return None


def _print_protocol(measurement: Measurement) -> None:
    """Prints how the measurement went; extras that failed were printed when they failed."""
    protocol, records = measurement.protocol, measurement.records
    printed = {line for name, record in records.items() for line in extras.warnings(name, record)}
    print(
        f"profile: {protocol.rounds} rounds in {protocol.processes} repeats, {protocol.timing_seconds:.0f} s of "
        f"timing; {protocol.ended_by_text or 'nothing to compare'}",
        flush=True,
    )
    for warning in (line for line in protocol.warnings if line not in printed):
        print(f"profile: warning: {warning}", flush=True)
