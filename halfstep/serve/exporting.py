"""One process that exports the weights of one training, in float32, and tests each format. Imports TensorFlow."""

from __future__ import annotations

import contextlib
import hashlib
import io
import re
import shutil
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import h5py
import numpy as np
from numpy.typing import NDArray

from halfstep.errors import HalfstepError, TaskError, one_line
from halfstep.inputs.own_code import of_files
from halfstep.results.artifact import write_array
from halfstep.results.serving import Export, Tensor, outputs_file
from halfstep.results.training import saved_model
from halfstep.serve import bench
from halfstep.serve.agreement import Tester
from halfstep.serve.records import INPUTS, Exported, Request
from halfstep.serve.worker import Runtime
from halfstep.serve.writing import Writer
from halfstep.system import files
from halfstep.system.quiet import quiet
from halfstep.tasks import building, user_code
from halfstep.tasks.fit_call import inside
from halfstep.tasks.trial import Trial
from halfstep.tensorflow_import import keras, tf
from halfstep.words.formats import FORMATS
from halfstep.words.policies import SIXTEEN_BIT

_LONGEST_REASON, _SHOWN = 200, 3
_NO_OPERATION = re.compile(r"'tf\.(\w+)' op is neither a custom op nor a flex op")
_PLACES = re.compile(r"\s*(?:Exception from |Check '|Details:)")  # in the code of OpenVINO
_SAYS = re.compile(
    r"(?:'tf\.\w+' op requires|This is an invalid model|Type parameter|Unsupported operation|[Nn]o conversion rule).*"
)


def serve(connection: Connection, trial: Trial, request: Request) -> None:
    """What the process runs: sends what `export` returns, or the message of an error."""

    def answer() -> None:
        connection.send(user_code.answer_of(trial.subject, lambda: export(trial, request)))

    inside(trial.in_float32(), answer)


def export(trial: Trial, request: Request) -> Exported:
    """Exports the weights of a training in float32 to each format, predicts the test data with it, and writes both.

    Args:
        trial: the training, with the baseline's entry, of which this process has the environment variables.
        request: how it is exported.

    Raises:
        TaskError, ModelError: the model cannot be built.
        DataError, CorruptFileError: the training's files are missing or damaged.
    """
    task = building.ready(trial.in_float32())
    if own := [layer for layer in _layers(task.model) if layer.compute_dtype in SIXTEEN_BIT]:
        raise TaskError(
            f"layer {own[0].name} computes in {own[0].compute_dtype} by its own dtype, also in a model in float32"
        )
    inputs = keras.tree.flatten(task.inputs(request.examples))
    if other := [array.dtype.name for array in inputs if array.dtype.kind not in "fiub"]:
        raise TaskError(f"an input has the type {other[0]}; a model is exported with inputs that are numbers")
    np.savez(request.folder / INPUTS, *inputs)
    if request.trained is not None:
        _load_weights(task.model, request.trained)
    tester = Tester(task, None if request.trained else inputs)
    with tempfile.TemporaryDirectory() as scratch:
        writer = Writer(task, inputs, Path(scratch))
        exports = tuple(item for name in request.formats for item in _exports(name, writer, tester, trial, request))
    return Exported(
        exports=exports,
        parameters=task.model.count_params(),
        inputs=_tensors(inputs, "x{}"),
        outputs=_tensors(tester.first_outputs, "output_{}"),
    )


def _tensors(arrays: Sequence[NDArray[Any]], name: str) -> tuple[Tensor, ...]:
    return tuple(
        Tensor(name=name.format(number), dtype=array.dtype.name, shape=array.shape[1:])
        for number, array in enumerate(arrays)
    )


def _layers(model: keras.Model) -> list[Any]:
    """The layers of a model and of those inside of it."""
    return [layer for layer in model._flatten_layers(include_self=False) if not isinstance(layer, keras.Model)]


def _load_weights(model: keras.Model, trained: Path) -> None:
    """Loads the trained weights; raises a TaskError if one differs from them bit for bit."""
    files.verify_manifest(trained)
    path = saved_model(trained)
    with warnings.catch_warnings():  # of the optimizer, whose state may differ
        warnings.simplefilter("ignore")
        model.load_weights(path)
    known = set(_digests(path))
    for weight in model.weights:
        if _digest(_widened(keras.ops.convert_to_numpy(weight))) not in known:
            raise TaskError(f"{weight.path} differs from what was trained")


def _digests(path: Path) -> Iterator[str]:
    """A digest of each array of numbers that was saved, widened to float32."""
    with contextlib.ExitStack() as stack:
        weights: Any = path
        if path.suffix == ".keras":
            archive = stack.enter_context(ZipFile(path))
            weights = io.BytesIO(archive.read("model.weights.h5"))
        store = stack.enter_context(h5py.File(weights, "r"))
        arrays: list[NDArray[Any]] = []
        store.visititems(lambda _, item: arrays.append(_array(item)) if isinstance(item, h5py.Dataset) else None)
    yield from map(_digest, arrays)


def _array(item: Any) -> NDArray[Any]:
    """A saved array in float32; those of bfloat16 are saved as bytes."""
    array = np.asarray(item)
    return _widened(array.view(tf.bfloat16.as_numpy_dtype) if array.dtype.kind == "V" else array)


def _widened(array: NDArray[Any]) -> NDArray[Any]:
    return array.astype(np.float32) if array.dtype.kind in "fV" else array


def _digest(array: NDArray[Any]) -> str:
    return hashlib.sha256(f"{array.shape}".encode() + np.ascontiguousarray(array).tobytes()).hexdigest()


def _exports(name: str, writer: Writer, tester: Tester, trial: Trial, request: Request) -> Iterator[Export]:
    """The export to a format, tested, with the reason where that does not work; and its file in another precision."""
    export = Export(variant=trial.name, seed=trial.seed, format=name)
    path, began_s = request.folder / "models" / name / f"model{FORMATS[name].suffix}", time.monotonic()
    try:
        with quiet():
            runtime = writer.write(name, path)
    except Exception as error:  # of a converter or a runtime, which is a result
        _remove(path)
        yield _refused(export, error, writer.task.model)
        return
    export = export.model_copy(
        update={"export_s": time.monotonic() - began_s, "note": writer.note(name), **_file(path, request)}
    )
    tested = _tested(export, runtime, writer, tester, request)
    yield tested
    if tested.refusal is not None:
        _remove(path)
    elif name == "openvino" and (other := f"{name}_{(fastest := bench.load(path)).precision}") in FORMATS:
        yield _tested(export.model_copy(update={"format": other}), fastest, writer, tester, request)


def _tested(export: Export, runtime: Runtime, writer: Writer, tester: Tester, request: Request) -> Export:
    """The export with what its test has found, of which the outputs are written; with the reason if they are wrong."""
    try:
        with quiet():
            outputs, found = tester.test(runtime, FORMATS[export.format].tolerance)
    except Exception as error:  # as above
        return _refused(export, error, writer.task.model)
    if outputs is not None:
        write_array(request.folder / outputs_file(export.seed, export.format), outputs)
    return export.model_copy(update=found)


def _refused(export: Export, error: Exception, model: keras.Model) -> Export:
    reason = f"{FORMATS[export.format].label}: {_reason(error, model)}"
    return Export(variant=export.variant, seed=export.seed, format=export.format, refusal=reason)


def _file(path: Path, request: Request) -> dict[str, Any]:
    """What is known of a file."""
    parts = _parts(path)
    return {
        "file": path.relative_to(request.folder).as_posix(),
        "sha256": of_files((part.relative_to(path).as_posix(), part) for part in parts)
        if path.is_dir()
        else files.sha256_file(path),
        "kib": sum(part.stat().st_size for part in parts) / 1024,
    }


def _parts(path: Path) -> list[Path]:
    """The files of an export; beside that of OpenVINO are its weights."""
    if path.is_dir():
        return sorted(part for part in path.rglob("*") if part.is_file())
    return sorted({path, *path.parent.glob(f"{path.stem}.bin")}) if path.suffix == ".xml" else [path]


def _remove(path: Path) -> None:
    for part in (path, path.with_suffix(".bin")):
        if part.is_dir():
            shutil.rmtree(part)
        else:
            part.unlink(missing_ok=True)


def _reason(error: BaseException, model: keras.Model) -> str:
    """What a converter or a runtime says, in one line: that which names the operation, where there is one."""
    if isinstance(error, HalfstepError):
        return str(error)
    text = str(error)
    layer = next((layer for layer in _layers(model) if re.search(rf"\b{re.escape(layer.name)}(?:_\d+)?/", text)), None)
    where = "" if layer is None else f" (layer {layer.name}, {type(layer).__name__})"
    if missing := list(dict.fromkeys(_NO_OPERATION.findall(text))):
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        return f"it has no operation for {', '.join(missing[:_SHOWN])}{more} in these types{where}"
    lines = [line.strip() for line in text.splitlines() if line.strip() and not _PLACES.match(line)]
    named = next(filter(None, (_SAYS.search(line) for line in lines)), None)
    return one_line(named[0] if named else (lines or [type(error).__name__])[0], _LONGEST_REASON) + where
