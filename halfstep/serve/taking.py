"""The folders that people take away: the file, how it is loaded and called, and the program that times it."""

from __future__ import annotations

import shutil
from pathlib import Path

from halfstep.results.serving import Export, Served, Tensor
from halfstep.results.task import TASK_INFO, TaskInfo
from halfstep.serve import bench
from halfstep.words.formats import FORMATS, precision_of, served_label

README = "README.md"
_OF_IMAGES = "The inputs are pixels from 0 to 255, as `prepare` wrote them; what scales them is part of the model."
_OF_OTHERS = "The inputs are what the data gave to `fit`; what the program did to them before is not in the file."
_LITERT = """
    from ai_edge_litert.interpreter import Interpreter  # pip install ai-edge-litert
    interpreter = Interpreter("{file}"{threads})
    {resize}interpreter.allocate_tensors()
    {given}
    interpreter.invoke()
    {results}

In Kotlin: `CompiledModel.create(path)`, `createInputBuffers()`, `run()`; in C++:
`tflite::FlatBufferModel::BuildFromFile`, `tflite::InterpreterBuilder`, `AllocateTensors()`, `Invoke()`."""
_ONNX = """
    import onnxruntime  # pip install onnxruntime
    {options}session = onnxruntime.InferenceSession("{file}"{threads})
    names = sorted(item.name for item in session.get_inputs())
    outputs = session.run(None, dict(zip(names, [{names}])))"""
_OPENVINO = """
    import openvino  # pip install openvino
    model = openvino.Core().compile_model("{file}", "CPU", {settings})
    {call}"""
_SAVED_MODEL = """
    import tensorflow as tf  # pip install tensorflow
    model = tf.saved_model.load("{file}")
    outputs = model.signatures["serving_default"]({keywords})"""
_KERAS = """
    import keras  # pip install keras tensorflow
    model = keras.models.load_model("{file}", compile=False)
    outputs = model(x0)"""


def lines_to_load(name: str, file: str, inputs: tuple[Tensor, ...], threads: int | None = None) -> str:
    """What loads and calls a file in Python, indented; `x0`, `x1` and so on are arrays with a row for each example."""
    names = [item.name for item in inputs]
    if name.startswith("litert"):
        several = "details = sorted(interpreter.get_input_details(), key=lambda item: item['name'])"
        return _LITERT.format(
            file=file,
            threads="" if threads is None else f", num_threads={threads}",
            resize=f"{several}\n    ",
            given="\n    ".join(f"interpreter.set_tensor(details[{at}]['index'], {x})" for at, x in enumerate(names)),
            results="outputs = [interpreter.get_tensor(item['index']) for item in interpreter.get_output_details()]",
        )
    if name == "onnx":
        options = f"options = onnxruntime.SessionOptions()\n    options.intra_op_num_threads = {threads}\n    "
        given = ("", "") if threads is None else (options, ", options")
        return _ONNX.format(file=file, options=given[0], threads=given[1], names=", ".join(names))
    if (precision := precision_of(name)) is not None:
        settings = {"INFERENCE_PRECISION_HINT": bench.OPENVINO_TYPES[precision]}
        settings |= {} if threads is None else {"INFERENCE_NUM_THREADS": f"{threads}"}
        ports = "ports = sorted(model.inputs, key=lambda port: min(port.get_names(), key=len))"
        several = f"{ports}\n    outputs = list(model(dict(zip(ports, [{', '.join(names)}]))).values())"
        call = several if len(names) > 1 else f"outputs = list(model([{', '.join(names)}]).values())"
        return _OPENVINO.format(file=file, settings=settings, call=call)
    if name == "saved_model":
        return _SAVED_MODEL.format(file=file, keywords=", ".join(f"{one}=tf.constant({one})" for one in names))
    return _KERAS.format(file=file)


def write_folders(served: Served, folder: Path) -> None:
    """Writes into the folder of each format what people need beside the file.

    Args:
        served: with the exports and the arms.
        folder: to which the paths of the exports are relative.
    """
    task = TaskInfo.read(TASK_INFO)
    for name, exports in served.by_format.items():
        item = exports[0]
        if item.file is None or FORMATS[name].file_of is not None:
            continue
        path = folder / item.file
        shutil.copyfile(bench.__file__, path.parent / "bench.py")
        (path.parent / README).write_text(_readme(item, path.name, served, is_of_images=task.has_classes))


def _readme(item: Export, file: str, served: Served, *, is_of_images: bool) -> str:
    """`README.md` of a format."""
    tensors = [f"- {kind} `{one.name}`: {one.dtype}, {_shape(one)}" for kind, one in _tensors(served)]
    data = _OF_IMAGES if is_of_images else _OF_OTHERS
    others = (
        f"\nAs {served_label(arm.format, arm.threads)}:\n{lines_to_load(arm.format, file, served.inputs, arm.threads)}"
        for arm in served.arms
        if (FORMATS[arm.format].file_of or arm.format) == item.format
        and (arm.threads, arm.format) != (None, item.format)
    )
    lines = [
        f"# {item.label} of {item.variant}, seed {item.seed}",
        "",
        f"`{file}`: {item.kib:,.0f} KiB, sha256 `{item.sha256}`" if item.kib else f"`{file}`",
        "",
        *tensors,
        "",
        f"{data} The first dimension is that of the examples.{f' Note: {item.note}.' if item.note else ''}",
        lines_to_load(item.format, file, served.inputs),
        *others,
        "",
        f"`python bench.py {file} --batch 1 32` times it on any machine; it needs NumPy and the runtime alone.",
        "",
    ]
    return "\n".join(lines)


def _tensors(served: Served) -> list[tuple[str, Tensor]]:
    return [*(("input", one) for one in served.inputs), *(("output", one) for one in served.outputs)]


def _shape(tensor: Tensor) -> str:
    return f"({', '.join(['examples', *map(str, tensor.shape)])})"
