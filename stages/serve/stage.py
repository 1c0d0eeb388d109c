"""The stage: exports the weights of every finished training, times the formats beside Keras, and writes the results."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from stages import files
from stages.errors import TrackingError
from stages.formats import KERAS
from stages.inputs.snapshot import Snapshot
from stages.machine import fingerprint
from stages.params import Params, ProfileParams
from stages.profile import repeats, runner
from stages.profile.extras import Wanted
from stages.profile.records import Measurement
from stages.profile.repeats import Repeats
from stages.profile.summary import Context, summarize
from stages.results.serving import SERVING, Served, model_path, nothing_served, write_times
from stages.results.task import TASK_INFO, TaskInfo, resolved
from stages.results.training import read_metrics
from stages.serve.exports import batch_sizes_of, exports_of, folder_of, trainings_of
from stages.serve.process import serve_format
from stages.serve.records import INPUTS, Exported, ServedConfig
from stages.tasks.spec import TaskSpec
from stages.tracking import backfill
from stages.tracking.tracker import Tracker

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
        protocol, prepared = _protocol(settings), files.verify_manifest(files.PREPARED)
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
    baseline = settings.compare.baseline
    if not TaskInfo.read(TASK_INFO).can_infer:
        return "the model has no outputs for inputs alone"
    if any(read_metrics(baseline, seed).failed for seed in settings.train.seeds):
        return f"a training of {baseline} failed"
    if not batch_sizes_of(settings):
        return "serve.batch_sizes is empty"
    return None


def _protocol(settings: Params) -> ProfileParams:
    """How the formats are timed: as the variants are, in inference alone."""
    return settings.profile.model_copy(
        update={"inference_batch_sizes": batch_sizes_of(settings), "find_max_batch": False}
    )


def _key(settings: Params, prepared: str) -> str:
    """Digest of all that decides what is exported and timed."""
    folders = [files.train_dir(name, seed) for name, seed in trainings_of(settings)]
    trained = {folder.name: folder for folder in folders}
    inputs = repeats.inputs_of(prepared, trained, serve=settings.serve.model_dump(mode="json"))
    return repeats.measurement_key(settings, inputs, code="serve")


def _serve(settings: Params, protocol: ProfileParams, kept: Repeats, prepared: str) -> None:
    """Exports and times, and writes all files but the manifest."""
    folder, threads = (kept.folder / _EXPORTS).absolute(), _threads(settings)
    exported = exports_of(settings, folder, threads, prepared)
    baseline = settings.compare.baseline
    first = exported[baseline, settings.train.seeds[0]]
    timed = [item.format for item in first.exports if item.refusal is None]
    measurement = _measured(settings, protocol, kept, first, timed, threads, prepared) if timed else None
    served = Served(
        formats=settings.serve.exported,
        batch_sizes=protocol.inference_batch_sizes,
        weights=baseline,
        threads=threads,
        timed=(KERAS, *timed) if timed else (),
        exports=tuple(item for found in exported.values() for item in found.exports),
    )
    _write(served, measurement, exported, folder)


def _threads(settings: Params) -> int:
    return settings.variants[settings.compare.baseline].threads or fingerprint.usable_cores()


def _measured(
    settings: Params,
    protocol: ProfileParams,
    kept: Repeats,
    exported: Exported,
    timed: Sequence[str],
    threads: int,
    prepared: str,
) -> Measurement:
    """Times the formats beside Keras, and Keras beside its second copy, in turns."""
    baseline, seed = settings.compare.baseline, settings.train.seeds[0]
    folder = folder_of((kept.folder / _EXPORTS).absolute(), baseline, seed)
    configs = {
        name: ServedConfig(
            spec=TaskSpec.of(settings, baseline, prepared),
            variant=settings.variants[baseline],
            seed=seed,
            format=KERAS if name == files.CONTROL else name,
            file=folder / model_path(baseline, seed, name) if name in timed else None,
            inputs=folder / INPUTS,
            threads=threads,
            parameters=exported.parameters,
            data_sha256=prepared,
        )
        for name in (KERAS, *timed, files.CONTROL)
    }
    context = runner.Context(
        Wanted(traces=False), min_speedup=settings.compare.min_speedup, trains=False, stage="serve"
    )
    return runner.measure(configs, KERAS, protocol, context, kept, serve_format)


def _write(
    served: Served, measurement: Measurement | None, exported: Mapping[tuple[str, int], Exported], folder: Path
) -> None:
    """Writes `data/serve/` but its manifest: the files, what they predict, the times, and what was done."""
    shutil.rmtree(files.SERVE, ignore_errors=True)
    files.SERVE.mkdir(parents=True)
    for name, seed in exported:
        for part in ("models", "outputs"):
            if (source := folder_of(folder, name, seed) / part).is_dir():
                shutil.copytree(source, files.SERVE / part, dirs_exist_ok=True)
    if measurement is not None:
        context = Context(measurement.protocol, 0, resumed=measurement.resumed)
        for name, record in measurement.records.items():
            write_times(name, summarize(name, record, context, None), record.times.calls)
    served.write(SERVING)
