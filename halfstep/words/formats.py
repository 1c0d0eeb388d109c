"""The formats in which a trained model can be served, and the packages that they need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec

KERAS = "keras"


@dataclass(frozen=True)
class Format:
    """A file format of a model with the runtime that predicts with it.

    Attributes:
        label: what people call it.
        suffix: of the file; that of a folder is empty.
        modules: Python modules that write it or run it, beside TensorFlow.
        tolerance: largest difference from an output of Keras that the format allows, as a share of the largest output;
            None for integers, which the margin of the score judges.
        has_tensorflow: whether TensorFlow predicts with it.
        file_of: the format whose file it computes with in another precision.
        precision: that its runtime is set to; None for those that have one only.
    """

    label: str
    suffix: str = ""
    modules: tuple[str, ...] = ()
    tolerance: float | None = None
    has_tensorflow: bool = False
    file_of: str | None = None
    precision: str | None = None

    @property
    def is_keras_file(self) -> bool:
        """Whether Keras loads it, with quantized weights."""
        return self.suffix == ".keras"

    @property
    def missing(self) -> list[str]:
        """The modules that are not installed; none of them is imported."""
        return [name for name in self.modules if find_spec(name) is None]


# Keras itself may compute in TF32, which differs from float32 by 1e-3.
_FLOAT32, _SIXTEEN_BITS = 0.01, 0.1
_LITERT, _OPENVINO = ("ai_edge_litert",), ("openvino",)
FORMATS: Mapping[str, Format] = {
    KERAS: Format("Keras"),  # the compiled function of the baseline, with which the others are compared
    "keras_int8": Format("Keras int8 weights", ".keras", has_tensorflow=True),
    "keras_int4": Format("Keras int4 weights", ".keras", has_tensorflow=True),
    "saved_model": Format("SavedModel", tolerance=_FLOAT32, has_tensorflow=True),
    "litert": Format("LiteRT", ".tflite", _LITERT, _FLOAT32),
    "litert_float16": Format("LiteRT float16", ".tflite", _LITERT, _SIXTEEN_BITS),
    "litert_int8": Format("LiteRT int8 weights", ".tflite", _LITERT),
    "litert_int8_full": Format("LiteRT int8", ".tflite", _LITERT),
    "onnx": Format("ONNX Runtime", ".onnx", ("onnxruntime", "onnx", "tf2onnx"), _FLOAT32),
    "openvino": Format("OpenVINO", ".xml", _OPENVINO, _FLOAT32, precision="float32"),
    "openvino_bfloat16": Format(
        "OpenVINO bfloat16", ".xml", _OPENVINO, _SIXTEEN_BITS, file_of="openvino", precision="bfloat16"
    ),
    "openvino_float16": Format(
        "OpenVINO float16", ".xml", _OPENVINO, _SIXTEEN_BITS, file_of="openvino", precision="float16"
    ),
}
