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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import h5py
import numpy as np
from numpy.typing import NDArray

from halfstep.errors import HalfstepError, TaskError, one_line
from halfstep.inputs.own_code import of_files
from halfstep.profile.worker import compiled_prediction
from halfstep.results.artifact import write_array
from halfstep.results.serving import Export, outputs_file
from halfstep.results.training import saved_model
from halfstep.serve import runtimes
from halfstep.serve.records import INPUTS, Exported, Request
from halfstep.system import files
from halfstep.tasks import building, user_code
from halfstep.tasks.fit_call import inside
from halfstep.tasks.ready import ReadyTask
from halfstep.tasks.trial import Trial
from halfstep.tensorflow_import import keras, tf
from halfstep.words.formats import FORMATS
from halfstep.words.policies import SIXTEEN_BIT

CALIBRATION_EXAMPLES = 200  # of the training data, for the ranges of int8; never test data
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

    inside(_in_float32(trial), answer)


def export(trial: Trial, request: Request) -> Exported:
    """Exports the weights of a training in float32 to each format, predicts the test data with it, and writes both.

    Args:
        trial: the training, with the baseline's entry, of which this process has the environment variables.
        request: how it is exported.

    Raises:
        TaskError, ModelError: the model cannot be built.
        DataError, CorruptFileError: the training's files are missing or damaged.
    """
    task = building.ready(_in_float32(trial))
    if own := [layer for layer in _layers(task.model) if layer.compute_dtype in SIXTEEN_BIT]:
        raise TaskError(
            f"layer {own[0].name} computes in {own[0].compute_dtype} by its own dtype, also in a model in float32"
        )
    inputs = keras.tree.flatten(task.inputs(request.examples))
    if other := [array.dtype.name for array in inputs if array.dtype.kind not in "fiub"]:
        raise TaskError(f"an input has the type {other[0]}; a model is exported with inputs that are numbers")
    np.savez(request.folder / INPUTS, *inputs)
    return Exported(
        exports=_exports(task, inputs, trial, request), parameters=task.model.count_params(), graph=_graph(task.model)
    )


def _exports(task: ReadyTask, inputs: Sequence[NDArray[Any]], trial: Trial, request: Request) -> tuple[Export, ...]:
    """The trained weights in each format, tested beside Keras; without a training, new weights on these inputs."""
    if request.trained is not None:
        _load_weights(task.model, request.trained)
    tester = _Tester(task, compiled_prediction(task.model), None if request.trained else inputs)
    with tempfile.TemporaryDirectory() as scratch:
        exporter = _Exporter(task, inputs, Path(scratch))
        exports = [Export(variant=trial.name, seed=trial.seed, format=name) for name in request.formats]
        return tuple(_one(export, exporter, tester, request) for export in exports)


def _in_float32(trial: Trial) -> Trial:
    float32 = trial.variant.model_copy(update={"policy": "float32", "float32_layers": ()})
    return replace(trial, variant=float32)


def _layers(model: keras.Model) -> list[Any]:
    """The layers of a model and of those inside of it."""
    return [layer for layer in model._flatten_layers(include_self=False) if not isinstance(layer, keras.Model)]


def _graph(model: keras.Model) -> str:
    """A digest of the layers and of the shapes of their weights: models that differ in it have other latencies."""
    rows = [(type(layer).__name__, [tuple(weight.shape) for weight in layer.weights]) for layer in _layers(model)]
    return hashlib.sha256(repr(rows).encode()).hexdigest()


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


class _Tester:
    """Compares predictions with those of Keras: on the test data, or where nothing was trained on some inputs."""

    def __init__(self, task: ReadyTask, keras_predict: Callable[[Any], Any], inputs: Sequence[Any] | None) -> None:
        self._task, self._inputs = task, inputs
        self._expected: list[list[NDArray[Any]]] = []
        self._structure: Any = None

        def kept(x: Any) -> Any:
            self._structure = keras_predict(x)
            leaves = keras.tree.flatten(self._structure)
            self._expected.append([np.asarray(keras.ops.convert_to_numpy(leaf)) for leaf in leaves])
            return self._structure

        if inputs is None:
            task.outputs(kept, allow_not_finite=True)
        else:
            kept(keras.tree.pack_sequence_as(task.inputs(1), inputs))

    def outputs(self, predict: runtimes.Predict) -> tuple[NDArray[Any] | None, float]:
        """What is stored of the test, None without one, and how far a prediction is from that of Keras at most."""
        expected, largest = iter(self._expected), 0.0

        def predicted(x: Any) -> Any:
            nonlocal largest
            outputs, known = predict([np.asarray(leaf) for leaf in keras.tree.flatten(x)]), next(expected)
            shapes = [array.shape for array in outputs], [array.shape for array in known]
            if shapes[0] != shapes[1]:
                raise TaskError(f"it gives outputs of the shapes {shapes[0]} in place of {shapes[1]}")
            for mine, wanted in zip(outputs, known, strict=True):
                largest = max(largest, float(np.max(np.abs(mine.astype(np.float64) - wanted), initial=0.0)))
            return keras.tree.pack_sequence_as(self._structure, outputs)

        if self._inputs is None:
            return self._task.outputs(predicted, allow_not_finite=True), largest
        predicted(self._inputs)
        return None, largest


class _Exporter:
    """Writes a model in each format.

    Args:
        task: with the model, and with training data for the ranges of int8.
        inputs: flat inputs, of which types and shapes are exported; the number of rows stays open.
        scratch: a folder for what is made on the way.
    """

    def __init__(self, task: ReadyTask, inputs: Sequence[NDArray[Any]], scratch: Path) -> None:
        self._task, self._scratch = task, scratch
        specs = [
            keras.InputSpec(shape=(None, *array.shape[1:]), dtype=array.dtype.name, name=runtimes.input_name(number))
            for number, array in enumerate(inputs)
        ]
        structure = task.inputs(1)
        self._signature = [keras.tree.pack_sequence_as(structure, specs)]
        self._saved: Path | None = None

    def write(self, name: str, path: Path) -> None:
        """Writes the model to a file, or for a SavedModel to a folder."""
        path.parent.mkdir(parents=True, exist_ok=True)
        if name == "saved_model":
            shutil.copytree(self._saved_model(), path)
        elif name in ("onnx", "openvino"):
            self._task.model.export(str(path), format=name, verbose=False, input_signature=self._signature)
        else:
            path.write_bytes(self._litert(name))

    def _saved_model(self) -> Path:
        """The model as a SavedModel, which those of LiteRT are made from; written once."""
        if self._saved is None:
            path = self._scratch / "saved_model"
            self._task.model.export(path, format="tf_saved_model", verbose=False, input_signature=self._signature)
            self._saved = path
        return self._saved

    def _litert(self, name: str) -> bytes:
        converter = tf.lite.TFLiteConverter.from_saved_model(str(self._saved_model()))
        if name != "litert":
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
        if name == "litert_float16":
            converter.target_spec.supported_types = [tf.float16]
        if name == "litert_int8_full":
            converter.representative_dataset = self._examples
            converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
            converter.inference_input_type = converter.inference_output_type = tf.int8
        return bytes(converter.convert())

    def _examples(self) -> Iterator[dict[str, NDArray[Any]]]:
        """Training examples, one at a time, by the name of the input."""
        given = 0
        for batch in self._task.training.from_step(0, None):
            leaves = [np.asarray(leaf) for leaf in keras.tree.flatten(keras.utils.unpack_x_y_sample_weight(batch)[0])]
            for row in range(len(leaves[0])):
                yield {runtimes.input_name(number): leaf[row : row + 1] for number, leaf in enumerate(leaves)}
                given += 1
                if given == CALIBRATION_EXAMPLES:
                    return


def _one(export: Export, exporter: _Exporter, tester: _Tester, request: Request) -> Export:
    """The export to one format, tested; with the reason where that does not work."""
    name = export.format
    path, began_s = request.folder / export.path, time.monotonic()
    try:
        with runtimes.quiet():
            exporter.write(name, path)
            export_s = time.monotonic() - began_s
            outputs, difference = tester.outputs(runtimes.load(name, path, request.threads))
    except Exception as error:  # of a converter or a runtime, which is a result
        _remove(path)
        return export.model_copy(update={"refusal": f"{FORMATS[name].label}: {_reason(error)}"})
    if outputs is not None:
        write_array(request.folder / outputs_file(export.variant, export.seed, name), outputs)
    parts = _parts(path)
    return export.model_copy(
        update={
            "file": export.path.as_posix(),
            "sha256": of_files((part.relative_to(path).as_posix(), part) for part in parts)
            if path.is_dir()
            else files.sha256_file(path),
            "kib": sum(part.stat().st_size for part in parts) / 1024,
            "export_s": export_s,
            "difference": difference,
        }
    )


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


def _reason(error: BaseException) -> str:
    """What a converter or a runtime says, in one line: that which names the operation, where there is one."""
    if isinstance(error, HalfstepError):
        return str(error)
    text = str(error)
    if missing := list(dict.fromkeys(_NO_OPERATION.findall(text))):
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        return f"it has no operation for {', '.join(missing[:_SHOWN])}{more} in these types"
    lines = [line.strip() for line in text.splitlines() if line.strip() and not _PLACES.match(line)]
    named = next(filter(None, (_SAYS.search(line) for line in lines)), None)
    return one_line(named[0] if named else (lines or [type(error).__name__])[0], _LONGEST_REASON)
