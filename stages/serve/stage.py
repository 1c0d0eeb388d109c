"""The stage: exports the weights of every finished training, times the formats beside Keras, and writes the results."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from stages import files
from stages.child import Child, ChildDiedError
from stages.errors import TrackingError
from stages.formats import FORMATS, KERAS
from stages.inputs.snapshot import Snapshot
from stages.machine import fingerprint
from stages.params import Params, ProfileParams
from stages.profile import repeats, runner
from stages.profile.extras import Wanted
from stages.profile.records import Measurement
from stages.profile.repeats import Repeats
from stages.profile.summary import Context, summarize
from stages.results.serving import SERVING, Export, Served, model_path, nothing_served, write_times
from stages.results.task import TASK_INFO, TaskInfo, resolved
from stages.results.training import read_metrics
from stages.serve.process import EXPORTING, export_training, serve_format
from stages.serve.records import INPUTS, Exported, Request, ServedConfig
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
        protocol = _protocol(settings)
        asked = repeats.amounts(protocol, settings.compare.min_speedup)
        kept = stack.enter_context(repeats.opened(_key(settings), asked, folder="serve"))
        _serve(settings, protocol, kept)
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
    if not _batch_sizes(settings):
        return "serve.batch_sizes is empty"
    return None


def _batch_sizes(settings: Params) -> tuple[int, ...]:
    given = settings.serve.batch_sizes
    return settings.profile.inference_batch_sizes if given is None else given


def _protocol(settings: Params) -> ProfileParams:
    """How the formats are timed: as the variants are, in inference alone."""
    return settings.profile.model_copy(
        update={"inference_batch_sizes": _batch_sizes(settings), "find_max_batch": False}
    )


def _trainings(settings: Params) -> Iterator[tuple[str, int]]:
    """The finished trainings, those of the baseline first; without any, the baseline alone."""
    baseline = settings.compare.baseline
    names = [baseline, *(name for name in settings.train.variants if name != baseline)]
    for name in names:
        for seed in settings.train.seeds:
            metrics = read_metrics(name, seed)
            if not metrics.failed and not metrics.not_trained:
                yield name, seed
    if read_metrics(baseline, settings.train.seeds[0]).not_trained:
        yield baseline, settings.train.seeds[0]


def _key(settings: Params) -> str:
    """Digest of all that decides what is exported and timed."""
    own = [path.read_text(encoding="utf-8") for path in (files.MODEL_FILE, files.TASK_FILE) if path.is_file()]
    folders = [files.train_dir(name, seed) for name, seed in _trainings(settings)]
    inputs = {
        "machine": fingerprint.read(),
        "data": files.verify_manifest(files.PREPARED),
        "own": own,
        "trained": {folder.name: files.sha256_file(folder / files.MANIFEST) for folder in folders},
        "serve": settings.serve.model_dump(mode="json"),
    }
    return repeats.measurement_key(settings, inputs, code="serve")


def _serve(settings: Params, protocol: ProfileParams, kept: Repeats) -> None:
    """Exports and times, and writes all files but the manifest."""
    folder, threads = (kept.folder / _EXPORTS).absolute(), _threads(settings)
    exported = _exported(settings, folder, threads)
    baseline = settings.compare.baseline
    first = exported[baseline, settings.train.seeds[0]]
    timed = [item.format for item in first.exports if item.refusal is None]
    measurement = _measured(settings, protocol, kept, first, timed, threads) if timed else None
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


def _exported(settings: Params, folder: Path, threads: int) -> dict[tuple[str, int], Exported]:
    """The exports of all trainings, as many at once as there are cores.

    Those of an earlier session, which a kill has interrupted, are taken over.
    """
    trainings = list(_trainings(settings))
    kept = {one: Exported.kept(_folder_of(folder, *one)) for one in trainings}
    found = {one: exported for one, exported in kept.items() if exported is not None}
    missing = [one for one in trainings if one not in found]
    jobs = [(one, in_own) for one in missing for in_own in (False, True) if not in_own or _is_tried(settings, *one)]
    answers: dict[tuple[tuple[str, int], bool], Exported] = {}
    for first in range(0, len(jobs), fingerprint.usable_cores()):
        with ExitStack() as stack:
            running = {
                (one, in_own): stack.enter_context(_export(settings, *one, folder, threads, in_own=in_own))
                for one, in_own in jobs[first : first + fingerprint.usable_cores()]
            }
            answers |= {(one, in_own): _answer(child, *one, settings) for (one, in_own), child in running.items()}
        left = {one for one, _ in jobs[first + fingerprint.usable_cores() :]}
        for one in (one for one in missing if one not in left and one not in found):
            found[one] = _with_own(answers[one, False], answers.get((one, True)))
            _say(*one, found[one])
            if not found[one].has_died:
                found[one].keep(_folder_of(folder, *one))
    return {one: found[one] for one in trainings}


def _is_tried(settings: Params, name: str, seed: int) -> bool:
    """Whether the model is also exported in the precision of its training, to see what the formats say of it."""
    return seed == settings.train.seeds[0] and settings.variants[name].policy != "float32"


def _with_own(exported: Exported, own: Exported | None) -> Exported:
    """The exports with what the formats say of the model in the precision of its training."""
    if own is None or own.has_died:
        return exported
    said = {item.format: {"refused_in": item.refused_in, "own_refusal": item.own_refusal} for item in own.exports}
    exports = tuple(item.model_copy(update=said.get(item.format, {})) for item in exported.exports)
    return exported.model_copy(update={"exports": exports})


def _folder_of(folder: Path, name: str, seed: int) -> Path:
    return folder / f"{name}-{seed}"


def _export(settings: Params, name: str, seed: int, folder: Path, threads: int, *, in_own: bool) -> Child:
    """Starts the process that exports a training."""
    mine = _folder_of(folder, name, seed)
    if not in_own:
        shutil.rmtree(mine, ignore_errors=True)
        mine.mkdir(parents=True)
    request = Request(
        variant=name,
        entry=settings.variants[name],
        seed=seed,
        trained=None if read_metrics(name, seed).not_trained else files.train_dir(name, seed).absolute(),
        folder=mine,
        formats=settings.serve.exported,
        examples=max(_batch_sizes(settings)),
        threads=threads,
        in_own=in_own,
    )
    baseline = settings.variants[settings.compare.baseline]
    spec = TaskSpec.of(settings, name, files.verify_manifest(files.PREPARED))
    arguments = (baseline, spec, request)
    is_script = spec.task.script is not None
    return Child(
        f"serve {name}-{seed}",
        export_training,
        arguments,
        baseline.variables,
        preload=EXPORTING,
        may_have_children=is_script,
    )


def _answer(child: Child, name: str, seed: int, settings: Params) -> Exported:
    """What the process has exported; each format has the reason where it could not."""
    formats = settings.serve.exported
    try:
        answer: Exported | str = child.receive()
    except ChildDiedError as error:
        return _refused(f"the process of the export: {error}", name, seed, formats, has_died=True)
    return _refused(answer, name, seed, formats) if isinstance(answer, str) else answer


def _say(name: str, seed: int, exported: Exported) -> None:
    for reason in dict.fromkeys(item.refusal for item in exported.exports if item.refusal is not None):
        print(f"serve: {name}, seed {seed}: {reason}", flush=True)
    print(f"serve: {name}, seed {seed}: {_summary(exported.exports)}", flush=True)


def _refused(reason: str, name: str, seed: int, formats: Sequence[str], *, has_died: bool = False) -> Exported:
    return Exported(exports=tuple(Export(variant=name, seed=seed, format=found, refusal=reason) for found in formats))


def _summary(exports: Sequence[Export]) -> str:
    done = [item for item in exports if item.refusal is None]
    seconds = sum(item.export_s or 0.0 for item in done)
    names = ", ".join(FORMATS[item.format].label for item in done) or "nothing"
    return f"exported to {names} in {seconds:.1f} s"


def _measured(
    settings: Params, protocol: ProfileParams, kept: Repeats, exported: Exported, timed: Sequence[str], threads: int
) -> Measurement:
    """Times the formats beside Keras, and Keras beside its second copy, in turns."""
    baseline, seed = settings.compare.baseline, settings.train.seeds[0]
    digest = files.verify_manifest(files.PREPARED)
    folder = _folder_of((kept.folder / _EXPORTS).absolute(), baseline, seed)
    configs = {
        name: ServedConfig(
            spec=TaskSpec.of(settings, baseline, digest),
            variant=settings.variants[baseline],
            seed=seed,
            format=KERAS if name == files.CONTROL else name,
            file=folder / model_path(baseline, seed, name) if name in timed else None,
            inputs=folder / INPUTS,
            threads=threads,
            parameters=exported.parameters,
            data_sha256=digest,
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
            if (source := folder / f"{name}-{seed}" / part).is_dir():
                shutil.copytree(source, files.SERVE / part, dirs_exist_ok=True)
    if measurement is not None:
        context = Context(measurement.protocol, 0, resumed=measurement.resumed)
        for name, record in measurement.records.items():
            write_times(name, summarize(name, record, context, None), record.times.calls)
    served.write(SERVING)
