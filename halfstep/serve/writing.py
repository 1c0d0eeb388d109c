"""Writes a model in each format, so that as many runtimes as possible take it. Imports TensorFlow."""

from __future__ import annotations

import contextlib
import itertools
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfstep.errors import TaskError
from halfstep.serve.keras_worker import KerasRuntime, quantize
from halfstep.serve.worker import Runtime, load
from halfstep.tasks.ready import ReadyTask
from halfstep.tensorflow_import import keras, tf
from halfstep.words.formats import FORMATS

CALIBRATION_EXAMPLES = 200  # of the training data, for the ranges of int8; never test data
CALIBRATION_BATCHES = 50  # that are looked through for examples of every class
MOST_STEPS = 256  # of a recurrent layer that is unrolled: the graph has its operations once for each step


class Writer:
    """Writes a model in each format.

    Args:
        task: with the model, and with training data for the ranges of int8.
        inputs: flat inputs, of which types and shapes are exported; the number of rows stays open.
        scratch: a folder for what is made on the way.
    """

    def __init__(self, task: ReadyTask, inputs: Sequence[NDArray[Any]], scratch: Path) -> None:
        self.task, self._inputs, self._scratch = task, inputs, scratch
        specs = [
            keras.InputSpec(shape=(None, *array.shape[1:]), dtype=array.dtype.name, name=f"x{number}")
            for number, array in enumerate(inputs)
        ]
        self.structure = task.inputs(1)
        self._signature = [keras.tree.pack_sequence_as(self.structure, specs)]
        self._recurrent = [layer for layer in task.model._flatten_layers() if hasattr(layer, "unroll")]
        self._saved: dict[bool, Path] = {}
        self._onnx: Path | None = None
        self.calibrated, self._keeps_loops = "", False  # loops of the file of OpenVINO

    def write(self, name: str, path: Path) -> Runtime:
        """Writes the model to a file, or for a SavedModel to a folder, and loads it."""
        path.parent.mkdir(parents=True, exist_ok=True)
        if FORMATS[name].is_keras_file:
            model = _copy_of(self.task.model)
            quantize(model, name)
            model.save(path)
            return KerasRuntime(model, self.structure)
        if name == "saved_model":
            shutil.copytree(self._saved_model(unrolled=False), path)
        elif name == "onnx":
            shutil.copyfile(self._onnx_file(), path)
        elif name == "openvino":
            return self._openvino(path)
        else:
            path.write_bytes(self._litert(name))
        return load(name, path)

    def note(self, name: str) -> str | None:
        """What was done so that the format takes the model."""
        notes = [f"calibrated on {self.calibrated}"] if name == "litert_int8_full" else []
        if self._recurrent and name == "openvino" and self._keeps_loops:
            notes.append("converted from its ONNX file")
        elif self._recurrent and name.startswith(("litert", "openvino")):
            notes.append("recurrent layers are unrolled")
        if FORMATS[name].is_keras_file:
            notes.append("Keras quantizes Dense, EinsumDense and Embedding alone")
        if open_inputs := _open_lengths(self.task.model, keras.tree.flatten(self._signature[0])):
            notes.append(f"for inputs of the length of the data alone: {open_inputs}")
        return "; ".join(notes) or None

    def _export(self, path: Path, name: str) -> None:
        self.task.model.export(str(path), format=name, verbose=False, input_signature=self._signature)

    @contextlib.contextmanager
    def _unrolled(self) -> Iterator[None]:
        """In the block, recurrent layers are unrolled: their loops keep lists, which LiteRT and OpenVINO lack.

        Raises:
            TaskError: a sequence is too long for that.
        """
        steps = max((int(array[0].shape[0]) for array in self._inputs if array.ndim > 1), default=0)
        if self._recurrent and steps > MOST_STEPS:
            raise TaskError(
                f"layer {self._recurrent[0].name} runs over {steps} steps, and a loop of more than {MOST_STEPS} has no "
                "operation there"
            )
        before = [layer.unroll for layer in self._recurrent]
        for layer in self._recurrent:
            layer.unroll = True
        try:
            yield
        finally:
            for layer, value in zip(self._recurrent, before, strict=True):
                layer.unroll = value

    def _saved_model(self, *, unrolled: bool) -> Path:
        """The model as a SavedModel; those of LiteRT are made from one without loops."""
        unrolled = unrolled and bool(self._recurrent)
        if unrolled not in self._saved:
            path = self._scratch / f"saved_model-{unrolled}"
            with self._unrolled() if unrolled else contextlib.nullcontext():
                self._export(path, "tf_saved_model")
            self._saved[unrolled] = path
        return self._saved[unrolled]

    def _onnx_file(self) -> Path:
        """As Keras exports it; where constant tensors become inputs in that, from the SavedModel. Written once."""
        if self._onnx is None:
            import onnx
            from tf2onnx import convert, tf_loader

            _know_erfc()
            path = self._scratch / "exported.onnx"
            path.parent.mkdir(parents=True, exist_ok=True)
            self._export(path, "onnx")
            if len(onnx.load(path).graph.input) != len(self._inputs):
                saved = str(self._saved_model(unrolled=False))
                graph, inputs, outputs, *_ = tf_loader.from_saved_model(saved, None, None)
                convert.from_graph_def(graph, input_names=inputs, output_names=outputs, output_path=str(path))
            self._onnx = path
        return self._onnx

    def _openvino(self, path: Path) -> Runtime:
        """As Keras exports it; with recurrent layers from the ONNX file, whose loops it runs faster than unrolled ones.

        Some loops cannot be converted, such as those of masks.
        """
        if self._recurrent:
            with contextlib.suppress(Exception):
                import openvino

                openvino.save_model(openvino.convert_model(self._onnx_file()), path, compress_to_fp16=False)
                runtime = load("openvino", path)
                self._keeps_loops = True
                return runtime
        with self._unrolled():
            self._export(path, "openvino")
        return load("openvino", path)

    def _litert(self, name: str) -> bytes:
        converter = tf.lite.TFLiteConverter.from_saved_model(str(self._saved_model(unrolled=True)))
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
        """Training examples, one at a time, by the name of the input: as many of each class where there are classes."""
        shape = getattr(self.task.model, "output_shape", None)  # of several outputs a list of them
        classes = shape[-1] if isinstance(shape, tuple) and isinstance(shape[-1], int) else 1
        quota, given = max(1, CALIBRATION_EXAMPLES // classes), Counter[int]()
        for batch in itertools.islice(self.task.training.from_step(0, None), CALIBRATION_BATCHES):
            x, y, _ = keras.utils.unpack_x_y_sample_weight(batch)
            leaves = [np.asarray(leaf) for leaf in keras.tree.flatten(x)]
            for row, label in enumerate(_labels(y, len(leaves[0]))):
                if sum(given.values()) < CALIBRATION_EXAMPLES and (label is None or given[label] < quota):
                    given[-1 if label is None else label] += 1
                    yield {f"x{number}": leaf[row : row + 1] for number, leaf in enumerate(leaves)}
        of_classes = "" if -1 in given else f" of {len(given)} classes"
        self.calibrated = f"{sum(given.values())} training examples{of_classes}"


def _labels(y: Any, rows: int) -> Sequence[int | None]:
    """The class of each row, of labels that are integers or one-hot; None where targets are no classes."""
    targets = keras.tree.flatten(y)
    labels: NDArray[Any] = np.asarray(targets[0]) if len(targets) == 1 else np.zeros(0)
    if labels.ndim == 2 and labels.shape[1] > 1 and (labels.sum(1) == 1).all():
        return [int(label) for label in labels.argmax(1)]
    is_class = labels.dtype.kind in "iu" and labels.size == rows
    return [int(label) for label in labels.reshape(-1)] if is_class else [None] * rows


def _copy_of(model: keras.Model) -> keras.Model:
    """A copy of a model with its weights, which can be changed."""
    copy = keras.models.clone_model(model)
    copy.set_weights(model.get_weights())
    return copy


def _open_lengths(model: keras.Model, specs: Sequence[keras.InputSpec]) -> str:
    """The inputs that the model takes in any length, with the length that is exported."""
    known = getattr(model, "inputs", None) or []
    return ", ".join(
        f"{spec.name} {'x'.join(map(str, spec.shape[1:]))}"
        for spec, given in zip(specs, known, strict=False)
        if None in tuple(given.shape)[1:]
    )


@cache
def _know_erfc() -> None:
    """Teaches tf2onnx the operation of the exact gelu, which ONNX lacks: erfc(x) = 1 - erf(x)."""
    from tf2onnx.handler import tf_op

    class Erfc:
        @classmethod
        def version_9(cls, ctx: Any, node: Any, **_: Any) -> None:
            name, output = node.name, node.output[0]
            shape, dtype = ctx.get_shape(output), ctx.get_dtype(output)
            ctx.remove_node(name)
            one = ctx.make_const(f"{name}_one", np.array(1, np.float32)).output[0]
            erf = ctx.make_node("Erf", node.input).output[0]
            ctx.make_node("Sub", [one, erf], outputs=[output], name=name, shapes=[shape], dtypes=[dtype])

    tf_op("Erfc")(Erfc)
