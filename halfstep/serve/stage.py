"""The stage: exports the trained weights, times the formats beside Keras, and writes the results."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from halfstep.errors import TrackingError
from halfstep.inputs.snapshot import Snapshot
from halfstep.params.schema import Params, ProfileParams
from halfstep.profile import repeats, runner
from halfstep.profile.records import Measurement
from halfstep.profile.repeats import Repeats
from halfstep.profile.summary import summarize
from halfstep.results.serving import SERVING, Served, ServedArm, nothing_served, refusal_of, write_times
from halfstep.results.task import TASK_INFO, TaskInfo, resolved
from halfstep.results.training import read_metrics
from halfstep.serve.alone import Program, arms_of, with_throughput
from halfstep.serve.exports import batch_sizes_of, exports_of, folder_of, seeds_of, weights_of
from halfstep.serve.process import serve_format
from halfstep.serve.records import INPUTS, Exported, ServedTrial
from halfstep.serve.taking import write_folders
from halfstep.system import files
from halfstep.tracking import backfill
from halfstep.tracking.tracker import Tracker
from halfstep.words.formats import KERAS

_EXPORTS = ".exports"  # in the folder that a measurement is kept in


def run(settings: Params, inputs: Snapshot | None = None) -> None:
    """Exports, measures and writes `data/serve/`; where nothing can be served, writes why.

    Raises:
        ChangedInputsError: `inputs` are not any more as they were.
        HalfstepError: a stage before this one has not run, or the results cannot be written.
    """
    settings = resolved(settings)
    if (why := _why_none(settings)) is not None:
        nothing_served(settings.serve.exported, why)
        print(f"serve: nothing is exported: {why}", flush=True)
        return
    with ExitStack() as stack:
        alone = {"inference_batch_sizes": batch_sizes_of(settings), "find_max_batch": False}
        protocol, prepared = settings.profile.model_copy(update=alone), files.verify_manifest(files.PREPARED)
        asked = repeats.amounts(protocol, settings.compare.min_speedup)
        kept = stack.enter_context(repeats.opened(_key(settings, prepared), asked, folder="serve"))
        _serve(settings, protocol, kept, prepared)
        if inputs:
            inputs.require_unchanged("with the former inputs, a run takes over what was exported and timed")
        files.write_manifest(files.SERVE)
        kept.finish()
    try:
        backfill.serving(Tracker(settings.tracking), settings)
    except TrackingError as error:  # the results are complete
        print(f"{error}; the results are in the files, and `compare` logs them", file=sys.stderr)


def _why_none(settings: Params) -> str | None:
    """Why nothing can be served."""
    weights, baseline = weights_of(settings), settings.compare.baseline
    if not TaskInfo.read(TASK_INFO).can_infer:
        return "the model has no outputs for inputs alone"
    for name in dict.fromkeys((baseline, weights)):
        if any(read_metrics(name, seed).failed for seed in settings.train.seeds):
            return f"a training of {name} failed"
    if not batch_sizes_of(settings):
        return "serve.batch_sizes is empty"
    return None


def _key(settings: Params, prepared: str) -> str:
    """Digest of all that decides what is exported and timed."""
    trained = {f"{seed}": files.train_dir(weights_of(settings), seed) for seed in seeds_of(settings)}
    inputs = repeats.inputs_of(
        prepared, trained=repeats.digests_of(trained), serve=settings.serve.model_dump(mode="json")
    )
    return repeats.measurement_key(settings, inputs, code="serve")


def _serve(settings: Params, protocol: ProfileParams, kept: Repeats, prepared: str) -> None:
    """Exports and times, and writes all files but the manifest."""
    folder = (kept.folder / _EXPORTS).absolute()
    exported = exports_of(settings, folder, prepared)
    first = exported[settings.train.seeds[0]]
    baseline = settings.variants[settings.compare.baseline]
    mine = folder_of(folder, settings.train.seeds[0])
    program = Program(mine, mine / INPUTS, baseline.python, baseline.variables, baseline.threads)
    served = Served(
        formats=settings.serve.exported,
        batch_sizes=protocol.inference_batch_sizes,
        weights=weights_of(settings),
        exports=tuple(item for of_one in exported.values() for item in of_one.exports),
        inputs=first.inputs,
        outputs=first.outputs,
    )
    usable = [exports[0] for exports in served.by_format.values() if refusal_of(exports) is None]
    arms, measurement = tuple(arms_of(usable, protocol.inference_batch_sizes, program)), None
    if arms:
        measurement = _measured(settings, protocol, kept, first, arms, program, prepared)
        arms = with_throughput(arms, usable, program)
    _write(served.model_copy(update={"arms": arms}), measurement, exported, folder)


def _measured(
    settings: Params,
    protocol: ProfileParams,
    kept: Repeats,
    first: Exported,
    arms: Sequence[ServedArm],
    program: Program,
    prepared: str,
) -> Measurement:
    """Times the arms beside Keras, and Keras beside its second copy, in turns."""
    trial = ServedTrial.of(settings, settings.compare.baseline, settings.train.seeds[0], prepared)
    keras = replace(trial, inputs=program.inputs, parameters=first.parameters)
    paths = {item.format: program.folder / str(item.file) for item in first.exports}
    of_files = {
        arm.name: replace(keras.in_float32(), format=arm.format, file=paths[arm.format], served_threads=arm.threads)
        for arm in arms
    }
    trials = {KERAS: keras, **of_files, files.CONTROL: keras}
    context = runner.MeasurementContext(
        traces=False, min_speedup=settings.compare.min_speedup, trains=False, stage="serve"
    )
    return runner.measure(trials, KERAS, protocol, context, kept, serve_format)


def _write(served: Served, measurement: Measurement | None, exported: Mapping[int, Exported], folder: Path) -> None:
    """Writes `data/serve/` but its manifest: the files, what they predict, the times, and what was done."""
    shutil.rmtree(files.SERVE, ignore_errors=True)
    files.SERVE.mkdir(parents=True)
    for number, seed in enumerate(exported):
        for part in ("outputs",) if number else ("models", "outputs"):
            if (source := folder_of(folder, seed) / part).is_dir():
                shutil.copytree(source, files.SERVE / part, dirs_exist_ok=True)
    if measurement is not None:
        for name, record in measurement.records.items():
            write_times(name, summarize(name, measurement, None), record.times.calls)
    write_folders(served, files.SERVE)
    served.write(SERVING)
