"""Predicts with an exported file: every runtime takes the same arrays on the host, and gives float32 on the host."""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfstep.tensorflow_import import tf

_RETURNED = re.compile(r"Identity(?:_\d+)?:0|[^:]+")  # names of outputs in OpenVINO; those of operations have a colon
_NUMBERED = re.compile(r"(?:output|Identity)(?:_(\d+))?(?::0)?")
Arrays = Sequence[NDArray[Any]]
# The inputs are called `x0`, `x1` and so on in every format, in the order of the flattened inputs of the model.
Predict = Callable[[Arrays], list[NDArray[Any]]]


def input_name(number: int) -> str:
    """The name of an input in all formats."""
    return f"x{number}"


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Drops what converters and runtimes print, that of C++ code included: what goes wrong is in their exceptions."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    with open(os.devnull, "w") as nothing:  # noqa: PTH123  its number is needed
        kept = [(number, os.dup(number)) for number in (1, 2)]
        try:
            for number, _ in kept:
                os.dup2(nothing.fileno(), number)
            yield
        finally:
            for number, copy in kept:
                os.dup2(copy, number)
                os.close(copy)
            logging.disable(before)


def load(name: str, path: Path, threads: int) -> Predict:
    """What predicts with a file.

    Args:
        name: of the format.
        path: the file or folder.
        threads: of the runtime; that of TensorFlow has the number with which its process has started.

    Returns:
        A function of the flat inputs, one array each, that returns the flat outputs; floating-point ones are float32.
    """
    if name == "saved_model":
        return _saved_model(path)
    if name == "onnx":
        return _onnx(path, threads)
    if name == "openvino":
        return _openvino(path, threads)
    return _litert(path, threads)


def _saved_model(path: Path) -> Predict:
    loaded = tf.saved_model.load(str(path))
    serve = loaded.signatures["serving_default"]
    names = _in_order(serve.structured_outputs)

    def predict(inputs: Arrays) -> list[NDArray[Any]]:
        outputs = serve(**{input_name(number): tf.constant(array) for number, array in enumerate(inputs)})
        return [_float32(outputs[name].numpy()) for name in names]

    setattr(predict, "loaded", loaded)  # noqa: B010  the signature holds only a weak reference to its variables
    return predict


def _litert(path: Path, threads: int) -> Predict:
    try:
        from ai_edge_litert.interpreter import Interpreter
    except ImportError:  # in the user's interpreter, where TensorFlow has it
        Interpreter = tf.lite.Interpreter  # noqa: N806  the class

    content = path.read_bytes()
    interpreters: dict[int, tuple[Any, list[Any], list[Any]]] = {}

    def allocated(inputs: Arrays) -> tuple[Any, list[Any], list[Any]]:
        """The interpreter of a batch size: to change its size takes longer than a prediction."""
        interpreter = Interpreter(model_content=content, num_threads=threads)
        before = _named_inputs(interpreter.get_input_details())
        for details, array in zip(before, inputs, strict=True):
            interpreter.resize_tensor_input(details["index"], array.shape)
        interpreter.allocate_tensors()
        names = interpreter.get_signature_list()["serving_default"]["outputs"]
        return interpreter, _named_inputs(interpreter.get_input_details()), _outputs(interpreter, names)

    def predict(inputs: Arrays) -> list[NDArray[Any]]:
        size = len(inputs[0])
        if size not in interpreters:
            interpreters[size] = allocated(inputs)
        interpreter, before, after = interpreters[size]
        for details, array in zip(before, inputs, strict=True):
            interpreter.set_tensor(details["index"], _quantized(array, details))
        interpreter.invoke()
        return [_dequantized(interpreter.get_tensor(details["index"]), details) for details in after]

    return predict


def _outputs(interpreter: Any, names: Sequence[str]) -> list[Any]:
    """The details of the outputs in the order of the model's."""
    details = interpreter.get_output_details()
    if len(details) == 1:
        return list(details)
    by_name = interpreter.get_signature_runner("serving_default").get_output_details()
    by_index = {detail["index"]: detail for detail in details}
    return [by_index[by_name[name]["index"]] for name in _in_order(names)]


def _named_inputs(details: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The details of the inputs in the order of their numbers; the name is such as `serving_default_x0:0`."""
    return sorted(details, key=lambda detail: _number(detail["name"].partition(":")[0]))


def _quantized(array: NDArray[Any], details: Mapping[str, Any]) -> NDArray[Any]:
    scale, zero = details["quantization"]
    if array.dtype == details["dtype"] or not scale:
        return array
    limits = np.iinfo(details["dtype"])
    return np.clip(np.round(array / scale) + zero, limits.min, limits.max).astype(details["dtype"])


def _dequantized(array: NDArray[Any], details: Mapping[str, Any]) -> NDArray[Any]:
    scale, zero = details["quantization"]
    return (array.astype(np.float32) - zero) * np.float32(scale) if scale else _float32(array)


def _onnx(path: Path, threads: int) -> Predict:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # it would slow down the other arms
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def predict(inputs: Arrays) -> list[NDArray[Any]]:
        outputs = session.run(names, {input_name(number): array for number, array in enumerate(inputs)})
        return [_float32(array) for array in outputs]

    return predict


def _openvino(path: Path, threads: int) -> Predict:
    import openvino

    settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads}
    compiled = openvino.Core().compile_model(path, "CPU", settings)
    places = {name.partition(":")[0]: port for port in compiled.inputs for name in port.get_names()}
    returned = {name: port for port in compiled.outputs for name in port.get_names() if _RETURNED.fullmatch(name)}
    # Outputs of other names are ends inside of the model, as of a causal mask.
    outputs = [returned[name] for name in _in_order(returned)] or list(compiled.outputs)

    def predict(inputs: Arrays) -> list[NDArray[Any]]:
        results = compiled({places[input_name(number)]: array for number, array in enumerate(inputs)})
        return [_float32(np.array(results[port])) for port in outputs]

    return predict


def _in_order(names: Iterable[str]) -> list[str]:
    """Names of outputs in the order of the model's: `output_0`, `output_1` by number, keys of a dictionary by name."""

    def place(name: str) -> tuple[int, str]:
        match = _NUMBERED.fullmatch(name)
        return (int(match[1] or 0), "") if match else (0, name)

    return sorted(names, key=place)


def _number(name: str) -> int:
    match = re.search(r"(\d+)$", name)
    return int(match[1]) if match else 0


def _float32(array: NDArray[Any]) -> NDArray[Any]:
    return array.astype(np.float32) if array.dtype.kind == "f" and array.dtype != np.float32 else array
