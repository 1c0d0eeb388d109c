"""What can be done about serving: try the formats that were left out, and export your own model to the best."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from halfstep.params.schema import Params
from halfstep.results.comparison import Comparison
from halfstep.system import rerun
from halfstep.words.formats import FORMATS, KERAS
from halfstep.words.text import joined

_CONVERTER = (
    'model.export("saved_model")',
    'converter = tf.lite.TFLiteConverter.from_saved_model("saved_model")',
    "converter.optimizations = [tf.lite.Optimize.DEFAULT]",
)
_CONVERTED = 'pathlib.Path("model.tflite").write_bytes(converter.convert())'
_INT8 = (
    "converter.representative_dataset = lambda: ({model.inputs[0].name: x[None]} for x in x_train[:200])",
    "converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]",
    "converter.inference_input_type = converter.inference_output_type = tf.int8",
)
_FLOAT16 = "converter.target_spec.supported_types = [tf.float16]"
_FROM_ONNX = ('openvino.save_model(openvino.convert_model("model.onnx"), "model.xml", compress_to_fp16=False)',)
# What writes a Keras `model`, by format; `x_train` are training examples.
EXPORT_LINES = {
    "saved_model": ('model.export("saved_model")',),
    "litert": ('model.export("model.tflite", format="litert")',),
    "litert_float16": (*_CONVERTER, _FLOAT16, _CONVERTED),
    "litert_int8": (*_CONVERTER, _CONVERTED),
    "litert_int8_full": (*_CONVERTER, *_INT8, _CONVERTED),
    "onnx": (
        'model.export("saved_model")',
        "from tf2onnx import convert, tf_loader",
        'graph, inputs, outputs, *_ = tf_loader.from_saved_model("saved_model", None, None)',
        'convert.from_graph_def(graph, input_names=inputs, output_names=outputs, output_path="model.onnx")',
    ),
    "openvino": ('model.export("model.xml", format="openvino")',),
}


def untried(settings: Params) -> list[str]:
    """The formats that can be tried here, and that the parameters leave out; not those of Keras, which are slower."""
    known = (KERAS, *settings.serve.formats)
    return [
        name
        for name, item in FORMATS.items()
        if name not in known and not item.missing and item.file_of is None and not item.is_keras_file
    ]


def serving_lines(comparison: Comparison, settings: Params) -> Iterator[str]:
    """What `halfstep advise` says of formats.

    Args:
        comparison: of the last run.
        settings: with the formats that it tried.
    """
    if others := untried(settings):
        labels = joined([FORMATS[name].label for name in others])
        formats = dict.fromkeys((KERAS, *settings.serve.formats, *others))
        yield f"Serving: {labels} {'was' if len(others) == 1 else 'were'} not tried. Nothing is trained again by"
        yield f"    {rerun.with_values({'serve.formats': list(formats)})}"
    serving = comparison.serving
    adopted = next((name for name, item in comparison.candidates.items() if item.verdict == "adopt"), None)
    if serving is not None and adopted is not None and serving.weights != adopted:
        yield f"The weights of {adopted}, which is adopted for training, are served by"
        yield f"    {rerun.with_values({'serve.weights': adopted})}"
    row = None if serving is None else serving.best_row
    if row is not None:
        yield f"To export your own model to {row.label}, as is advised:"
        yield '    keras.config.set_dtype_policy("float32")  # before the model is built'
        yield '    model = build(); model.load_weights("model.weights.h5")  # of the training, in any precision'
        if "unrolled" in (row.note or ""):
            yield "    for layer in model.layers: layer.unroll = True  # of the recurrent layers"
        name = FORMATS[row.format].file_of or row.format
        lines = (*EXPORT_LINES["onnx"], *_FROM_ONNX) if "ONNX" in (row.note or "") else EXPORT_LINES[name]
        yield from (f"    {line}" for line in lines)
    if row is not None and row.file is not None:
        yield f"How it is loaded and called: {Path(row.file).parent / 'README.md'}"
