"""The stage: exports the weights of every finished training, times the formats beside Keras, and writes the results."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from halfstep.errors import TrackingError
from halfstep.inputs.snapshot import Snapshot
from halfstep.machine import fingerprint
from halfstep.params.schema import Params, ProfileParams
from halfstep.profile import repeats, runner
from halfstep.profile.records import Measurement
from halfstep.profile.repeats import Repeats
from halfstep.profile.summary import summarize
from halfstep.results.serving import SERVING, Export, Served, nothing_served, write_times
from halfstep.results.task import TASK_INFO, TaskInfo, resolved
from halfstep.results.training import read_metrics
from halfstep.serve.exports import batch_sizes_of, exports_of, folder_of, trainings_of
from halfstep.serve.process import serve_format
from halfstep.serve.records import INPUTS, Exported, ServedTrial
from halfstep.system import files
from halfstep.tracking import backfill
from halfstep.tracking.tracker import Tracker
from halfstep.words.formats import KERAS

_EXPORTS = ".exports"  # in the folder that a measurement is kept in
Trainings = Mapping[tuple[str, int], Exported]  # by variant and seed
_Graph = tuple[object, ...]


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
    baseline = settings.compare.baseline
    if not TaskInfo.read(TASK_INFO).can_infer:
        return "the model has no outputs for inputs alone"
    if any(read_metrics(baseline, seed).failed for seed in settings.train.seeds):
        return f"a training of {baseline} failed"
    if not batch_sizes_of(settings):
        return "serve.batch_sizes is empty"
    return None


def _key(settings: Params, prepared: str) -> str:
    """Digest of all that decides what is exported and timed."""
    folders = [files.train_dir(name, seed) for name, seed in trainings_of(settings)]
    trained = {folder.name: folder for folder in folders}
    inputs = repeats.inputs_of(prepared, trained, serve=settings.serve.model_dump(mode="json"))
    return repeats.measurement_key(settings, inputs, code="serve")


def _serve(settings: Params, protocol: ProfileParams, kept: Repeats, prepared: str) -> None:
    """Exports and times, and writes all files but the manifest."""
    baseline, folder = settings.compare.baseline, (kept.folder / _EXPORTS).absolute()
    threads = settings.variants[baseline].threads or fingerprint.usable_cores()
    exported = exports_of(settings, folder, threads, prepared)
    graphs = timed_graphs(settings, exported)
    arms = dict(graphs.values())
    measurement = _measured(settings, protocol, kept, exported, arms, threads, prepared) if arms else None
    served = Served(
        formats=settings.serve.exported,
        batch_sizes=protocol.inference_batch_sizes,
        weights=baseline,
        threads=threads,
        timed=(KERAS, *arms) if arms else (),
        exports=tuple(
            item if item.refusal else item.model_copy(update={"timed_as": _arm(item, graphs, settings, exported)})
            for training_exports in exported.values()
            for item in training_exports.exports
        ),
    )
    _write(served, measurement, exported, folder)


def timed_graphs(settings: Params, exported: Trainings) -> dict[_Graph, tuple[str, Export]]:
    """What is timed, by format and graph: the name of the arm, and one file, the baseline's where it has that graph.

    A latency does not depend on the values of the weights, so that a graph is timed once.
    """
    graphs: dict[_Graph, tuple[str, Export]] = {}
    for (variant, _), of_one in exported.items():
        for item in of_one.exports:
            if item.refusal is None and (graph := _graph_of(item, settings, exported)) not in graphs:
                is_baseline = variant == settings.compare.baseline
                graphs[graph] = (item.format if is_baseline else f"{item.format}.{variant}", item)
    return graphs


def _arm(
    item: Export, graphs: Mapping[_Graph, tuple[str, Export]], settings: Params, exported: Trainings
) -> str | None:
    """The arm with the times of an export; None where it has the name of its format."""
    name, _ = graphs[_graph_of(item, settings, exported)]
    return None if name == item.format else name


def _graph_of(item: Export, settings: Params, exported: Trainings) -> _Graph:
    """What decides about the latency of an export, beside the machine."""
    entry = settings.variants[item.variant]
    return (item.format, entry.task_path, exported[item.variant, item.seed].graph)


def _measured(
    settings: Params,
    protocol: ProfileParams,
    kept: Repeats,
    exported: Trainings,
    arms: Mapping[str, Export],
    threads: int,
    prepared: str,
) -> Measurement:
    """Times the formats beside Keras, and Keras beside its second copy, in turns."""
    baseline, seed = settings.compare.baseline, settings.train.seeds[0]
    folder = (kept.folder / _EXPORTS).absolute()
    keras = replace(
        ServedTrial.of(settings, baseline, seed, prepared),
        inputs=folder_of(folder, baseline, seed) / INPUTS,
        threads=threads,
        parameters=exported[baseline, seed].parameters,
    )
    of_files = {
        name: replace(
            keras,
            format=item.format,
            file=folder_of(folder, item.variant, item.seed) / item.path,
            inputs=folder_of(folder, item.variant, item.seed) / INPUTS,
            parameters=exported[item.variant, item.seed].parameters,
        )
        for name, item in arms.items()
    }
    trials = {KERAS: keras, **of_files, files.CONTROL: keras}
    context = runner.MeasurementContext(
        traces=False, min_speedup=settings.compare.min_speedup, trains=False, stage="serve"
    )
    return runner.measure(trials, KERAS, protocol, context, kept, serve_format)


def _write(served: Served, measurement: Measurement | None, exported: Trainings, folder: Path) -> None:
    """Writes `data/serve/` but its manifest: the files, what they predict, the times, and what was done."""
    shutil.rmtree(files.SERVE, ignore_errors=True)
    files.SERVE.mkdir(parents=True)
    for name, seed in exported:
        for part in ("models", "outputs"):
            if (source := folder_of(folder, name, seed) / part).is_dir():
                shutil.copytree(source, files.SERVE / part, dirs_exist_ok=True)
    if measurement is not None:
        for name, record in measurement.records.items():
            write_times(name, summarize(name, measurement, None), record.times.calls)
    served.write(SERVING)
