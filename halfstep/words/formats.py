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
    """

    label: str
    suffix: str = ""
    modules: tuple[str, ...] = ()

    @property
    def missing(self) -> list[str]:
        """The modules that are not installed; none of them is imported."""
        return [name for name in self.modules if find_spec(name) is None]


_LITERT = ("ai_edge_litert",)
FORMATS: Mapping[str, Format] = {
    KERAS: Format("Keras"),  # the compiled function of the baseline, with which the others are compared
    "saved_model": Format("SavedModel"),
    "litert": Format("LiteRT", ".tflite", _LITERT),
    "litert_float16": Format("LiteRT float16", ".tflite", _LITERT),
    "litert_int8": Format("LiteRT int8 weights", ".tflite", _LITERT),
    "litert_int8_full": Format("LiteRT int8", ".tflite", _LITERT),
    "onnx": Format("ONNX Runtime", ".onnx", ("onnxruntime", "onnx", "tf2onnx")),
    "openvino": Format("OpenVINO", ".xml", ("openvino",)),
}
