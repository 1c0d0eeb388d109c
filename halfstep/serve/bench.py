"""Times a model file with the runtime that predicts with it, alone in this process.

    python bench.py model.tflite --threads 1 --batch 1

It needs Python 3.10, NumPy and the runtime of the file, and nothing else of halfstep: copy it to the server or the
board. The inputs are those of `--inputs`, else random ones. Each call is timed by itself, from arrays on the host to
arrays on the host, after calls that warm up. The first call is the first one of the process.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import resource
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

RING, RING_BYTES = 64, 2**23  # inputs that take turns, so that a call does not find its own in the cache
SECONDS, FEWEST_CALLS = 0.3, 10
_NUMBERED = re.compile(r"(?:x|output|Identity)(?:_?(\d+))?")
_NAMED_OUTPUT = re.compile(r"Identity(?:_\d+)?:0|[^:]+")  # in OpenVINO; the names of operations have a colon
Arrays = Sequence[NDArray[Any]]
Call = Callable[[Arrays], Any]  # predicts once


class Input(NamedTuple):
    """An input of a file; open dimensions of `shape` are None."""

    name: str
    shape: tuple[int | None, ...]
    dtype: np.dtype[Any]


class LiteRT:
    """A `.tflite` file; without `threads` LiteRT uses one."""

    device, precision = "CPU", "float32"

    def __init__(self, path: Path, threads: int | None = None, precision: str | None = None) -> None:
        try:
            from ai_edge_litert.interpreter import Interpreter
        except ImportError:  # TensorFlow has it
            from tensorflow import lite

            Interpreter = lite.Interpreter  # noqa: N806  the class
        options = {} if threads is None else {"num_threads": threads}
        self._new: Any = lambda: Interpreter(model_path=str(path), **options)
        self._unused: Any = self._new()  # the first predictor takes it: an interpreter has the memory of one batch size
        details = _in_order(self._unused.get_input_details(), _tensor_name)
        self.inputs = [
            Input(
                _tensor_name(item),
                tuple(None if size < 0 else int(size) for size in item["shape_signature"]),
                np.dtype(item["dtype"]),
            )
            for item in details
        ]

    def predictor(self, inputs: Arrays) -> Call:
        """What predicts inputs of these shapes."""
        interpreter, self._unused = self._unused or self._new(), None
        before = _in_order(interpreter.get_input_details(), _tensor_name)
        for item, array in zip(before, inputs, strict=True):
            interpreter.resize_tensor_input(item["index"], array.shape)
        interpreter.allocate_tensors()
        after = self._outputs(interpreter)
        places = [item["index"] for item in before]
        scales = [_scale(item, array.dtype) for item, array in zip(before, inputs, strict=True)]
        results = [(item["index"], _scale(item, np.dtype(np.float32))) for item in after]

        def call(inputs: Arrays) -> list[NDArray[Any]]:
            for place, array, scale in zip(places, inputs, scales):  # noqa: B905  as many, and in each call
                interpreter.set_tensor(place, array if scale is None else _quantized(array, *scale))
            interpreter.invoke()
            return [
                interpreter.get_tensor(place)
                if scale is None
                else (interpreter.get_tensor(place).astype(np.float32) - scale[1]) * np.float32(scale[0])
                for place, scale in results
            ]

        return call

    @staticmethod
    def _outputs(interpreter: Any) -> list[Any]:
        """The details of the outputs in the order of the model's, which only the signature has the names of."""
        details = interpreter.get_output_details()
        if len(details) == 1 or not (signatures := interpreter.get_signature_list()):
            return list(details)
        name, signature = next(iter(signatures.items()))
        named = interpreter.get_signature_runner(name).get_output_details()
        by_index = {item["index"]: item for item in details}
        return [by_index[named[key]["index"]] for key in _in_order(signature["outputs"], str)]


class OnnxRuntime:
    """An `.onnx` file on the CPU; without `threads` ONNX Runtime uses all cores."""

    device, precision = "CPU", "float32"

    def __init__(self, path: Path, threads: int | None = None, precision: str | None = None) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        if threads is not None:
            options.intra_op_num_threads = threads
        self._session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self.inputs = [Input(item.name, _open(item.shape), _onnx_dtype(item.type)) for item in self._in_order()]

    def _in_order(self) -> list[Any]:
        return _in_order(self._session.get_inputs(), lambda item: item.name)

    def predictor(self, inputs: Arrays) -> Call:
        """What predicts inputs of these shapes."""
        run, names = self._session.run, [item.name for item in self._in_order()]
        wanted = _in_order([item.name for item in self._session.get_outputs()], str)
        return lambda inputs: run(wanted, dict(zip(names, inputs)))  # noqa: B905  as many, and in each call


class OpenVino:
    """An `.xml` file on the CPU, by default with all cores, and in the type that OpenVINO chooses."""

    device = "CPU"

    def __init__(self, path: Path, threads: int | None = None, precision: str | None = None) -> None:
        import openvino

        settings: dict[str, Any] = {} if threads is None else {"INFERENCE_NUM_THREADS": threads}
        settings |= {} if precision is None else {"INFERENCE_PRECISION_HINT": OPENVINO_TYPES.get(precision, precision)}
        self._compiled = openvino.Core().compile_model(path, "CPU", settings)
        in_force = self._compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()
        self.precision = {short: name for name, short in OPENVINO_TYPES.items()}.get(in_force, in_force)
        self._ports = _in_order(self._compiled.inputs, _port_name)
        self.inputs = [
            Input(
                _port_name(port),
                tuple(size.get_length() if size.is_static else None for size in port.partial_shape),
                port.element_type.to_dtype(),
            )
            for port in self._ports
        ]

    def predictor(self, inputs: Arrays) -> Call:
        """What predicts inputs of these shapes."""
        compiled, given = self._compiled, [self._compiled.inputs.index(port) for port in self._ports]
        named = [
            (name, number)
            for number, port in enumerate(compiled.outputs)
            for name in sorted(filter(_NAMED_OUTPUT.fullmatch, port.get_names()))[:1]
        ]
        # Outputs of other names are ends inside of the model, as of a causal mask.
        wanted = [number for _, number in _in_order(named, lambda one: one[0])] or range(len(compiled.outputs))
        order = None if given == sorted(given) else np.argsort(given)

        def call(inputs: Arrays) -> list[NDArray[Any]]:
            results = compiled(list(inputs) if order is None else [inputs[number] for number in order])
            return [results[number] for number in wanted]

        return call


class SavedModel:
    """A folder with a SavedModel, which TensorFlow runs; without `threads` it uses all cores, or a GPU."""

    precision = "float32"

    def __init__(self, path: Path, threads: int | None = None, precision: str | None = None) -> None:
        import tensorflow as tf

        if threads is not None:
            tf.config.threading.set_intra_op_parallelism_threads(threads)
        self._loaded, self._constant = tf.saved_model.load(str(path)), tf.constant
        self._serve = self._loaded.signatures["serving_default"]
        self.device = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
        specs = self._serve.structured_input_signature[1]
        self.inputs = [
            Input(name, tuple(specs[name].shape), np.dtype(specs[name].dtype.as_numpy_dtype))
            for name in _in_order(specs, str)
        ]

    def predictor(self, inputs: Arrays) -> Call:
        """What predicts inputs of these shapes."""
        serve, constant, names = self._serve, self._constant, [item.name for item in self.inputs]
        wanted = _in_order(serve.structured_outputs, str)

        def call(inputs: Arrays) -> list[NDArray[Any]]:
            outputs = serve(**{name: constant(array) for name, array in zip(names, inputs)})  # noqa: B905
            return [outputs[name].numpy() for name in wanted]

        return call


OPENVINO_TYPES = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}
Runtime = LiteRT | OnnxRuntime | OpenVino | SavedModel
RUNTIMES: dict[str, type[Runtime]] = {".tflite": LiteRT, ".onnx": OnnxRuntime, ".xml": OpenVino, "": SavedModel}


def load(path: Path, threads: int | None = None, precision: str | None = None) -> Runtime:
    """The file with its runtime, whose defaults hold where `threads` and `precision` are None.

    Raises:
        ValueError: no runtime is known for such a file.
    """
    if path.suffix not in RUNTIMES or not path.exists():
        raise ValueError(f"{path}: no model file; allowed are .tflite, .onnx, .xml and the folder of a SavedModel")
    return RUNTIMES[path.suffix](path, threads, precision)


def float32(outputs: Iterable[NDArray[Any]]) -> list[NDArray[Any]]:
    """Outputs, of which those of other floating-point types are converted."""
    return [array.astype(np.float32) if array.dtype.kind == "f" else array for array in map(np.asarray, outputs)]


def ring_of(examples: Arrays, batch_size: int) -> list[list[NDArray[Any]]]:
    """Different inputs of a batch size, at most 64, or 8 MiB of them: rows of the examples, which repeat."""
    rows = len(examples[0])
    size = max(1, sum(array[:1].nbytes for array in examples) * batch_size)
    count = max(2, min(RING, RING_BYTES // size))
    taken = (np.arange(number * batch_size, (number + 1) * batch_size) % rows for number in range(count))
    return [[np.ascontiguousarray(array[at]) for array in examples] for at in taken]


def times_ns(call: Call, ring: Sequence[Arrays], seconds: float, fewest: int = FEWEST_CALLS) -> NDArray[np.int64]:
    """Nanoseconds of single calls, in turns with the inputs of the ring, for so many seconds."""
    clock, times, ended = time.perf_counter_ns, list[int](), 0
    until = clock() + int(seconds * 1e9)
    while ended < until or len(times) < fewest:
        inputs = ring[len(times) % len(ring)]
        began = clock()
        call(inputs)
        ended = clock()
        times.append(ended - began)
    return np.array(times)


def measure(
    path: Path,
    threads: int | None,
    precision: str | None,
    batch_sizes: Sequence[int],
    given: Arrays | None,
    seconds: float = SECONDS,
) -> dict[str, Any]:
    """Loads the file and times it at each batch size.

    Returns:
        What `--json` prints: `load_ms` with the import of the runtime, `memory_mib` at most until the first call, and
        by batch size `first_call_ms`, which for the first one is that of the process.
    """
    began = time.perf_counter()
    runtime = load(path, threads, precision)
    found: dict[str, Any] = {"threads": threads, "precision": runtime.precision, "batches": []}
    load_ms = (time.perf_counter() - began) * 1e3
    examples = given if given is not None else [_random(item, max(batch_sizes)) for item in runtime.inputs]
    for batch_size in batch_sizes:
        ring = ring_of(examples, batch_size)
        began = time.perf_counter()
        call = runtime.predictor(ring[0])
        ready_ms = (time.perf_counter() - began) * 1e3
        first_ms = times_ns(call, ring, 0, 1)[0] / 1e6
        if not found["batches"]:
            found |= {"load_ms": load_ms + ready_ms, "memory_mib": _peak_mib()}
        times_ns(call, ring, seconds / 3)
        times_ms = times_ns(call, ring, seconds) / 1e6
        ranks = {f"p{rank}_ms": float(np.percentile(times_ms, rank)) for rank in (10, 50, 99)}
        counted = {"batch_size": batch_size, "calls": len(times_ms)}
        found["batches"].append({**counted, "first_call_ms": first_ms, **ranks})
    return found


def main() -> int:
    """Prints what `measure` finds."""
    parser = argparse.ArgumentParser(prog="halfstep serve-bench", description=__doc__.partition("\n")[0])
    parser.add_argument("file", type=Path, help="a .tflite, .onnx or .xml file, or the folder of a SavedModel")
    parser.add_argument("--threads", type=_positive, help="of the runtime; by default as many as it chooses")
    parser.add_argument(
        "--precision", choices=[*OPENVINO_TYPES], help="in which OpenVINO computes; by default it chooses"
    )
    parser.add_argument("--batch", type=_positive, nargs="+", default=[1], help="batch sizes (default: 1)")
    parser.add_argument("--inputs", type=Path, help="an .npz file with one array of examples for each input, in order")
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help=f"of timing at each batch size (default: {SECONDS})"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    asked = parser.parse_args()
    try:
        given = None
        if asked.inputs is not None:
            with np.load(asked.inputs, allow_pickle=False) as stored:
                given = [stored[name] for name in stored.files]
        with _quiet_runtime():
            found = measure(asked.file, asked.threads, asked.precision, asked.batch, given, asked.seconds)
    except Exception as error:  # of a runtime, whose classes of errors are its own
        lines = str(error).strip().splitlines() or [type(error).__name__]
        print(f"{asked.file}: {lines[0]}", file=sys.stderr)
        return 1
    print(json.dumps(found) if asked.json else "\n".join(_lines(found)))
    return 0


def _lines(found: dict[str, Any]) -> Iterable[str]:
    loaded = f"load {found['load_ms']:.0f} ms, memory {found['memory_mib']:.0f} MiB"
    yield f"threads {found['threads'] or 'default'}, {found['precision']}: {loaded}"
    for item in found["batches"]:
        keys = {"first call": "first_call_ms", "p50": "p50_ms", "p99": "p99_ms"}
        values = ", ".join(f"{name} {item[key]:.4g} ms" for name, key in keys.items())
        per_s = item["batch_size"] * 1e3 / item["p50_ms"]
        yield f"batch {item['batch_size']}: {values}; {item['calls']:,} calls, {per_s:,.0f} examples/s"


def _random(item: Input, rows: int) -> NDArray[Any]:
    """Examples for an input: floats from 0 to 1, and integers 0 and 1, which every embedding has."""
    if None in item.shape[1:]:
        raise ValueError(f"input {item.name} has the shape {item.shape}; give its examples with --inputs FILE.npz")
    shape = (rows, *(size or 1 for size in item.shape[1:]))
    random = np.random.default_rng(0)
    return (
        random.random(shape).astype(item.dtype)
        if item.dtype.kind == "f"
        else random.integers(0, 2, shape).astype(item.dtype)
    )


def _in_order(items: Iterable[Any], name_of: Callable[[Any], str]) -> list[Any]:
    """Inputs or outputs in the order of the model's: `x0`, `x1` by number, keys of a dictionary by name."""

    def place(item: Any) -> tuple[int, str]:
        name = name_of(item).partition(":")[0]
        match = _NUMBERED.fullmatch(name)
        return (int(match[1] or 0), "") if match else (0, name)

    return sorted(items, key=place)


def _tensor_name(item: Any) -> str:
    """The name of an input of LiteRT, of `serving_default_x0:0`."""
    return str(item["name"]).partition(":")[0].removeprefix("serving_default_")


def _port_name(port: Any) -> str:
    return min(port.get_names(), key=len, default="").partition(":")[0]


def _scale(item: Any, dtype: np.dtype[Any]) -> tuple[float, int, np.dtype[Any]] | None:
    """Scale, zero and type of a quantized tensor; None where it has the type already, or is not quantized."""
    scale, zero = item["quantization"]
    return None if np.dtype(item["dtype"]) == dtype or not scale else (scale, zero, np.dtype(item["dtype"]))


def _quantized(array: NDArray[Any], scale: float, zero: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    limits = np.iinfo(dtype)
    return np.clip(np.round(array / scale) + zero, limits.min, limits.max).astype(dtype)


def _open(shape: Iterable[Any]) -> tuple[int | None, ...]:
    return tuple(size if isinstance(size, int) else None for size in shape)


def _onnx_dtype(name: str) -> np.dtype[Any]:
    short = {"float": "float32", "double": "float64"}
    text = name.removeprefix("tensor(").removesuffix(")")
    return np.dtype(short.get(text, text))


def _peak_mib() -> float:
    """Peak of this process's resident memory; that of `getrusage` may be the peak of the process that started it."""
    status = Path("/proc/self/status")
    if status.exists():
        return int(re.findall(r"VmHWM:\s+(\d+)", status.read_text())[0]) / 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


@contextlib.contextmanager
def _quiet_runtime() -> Iterator[None]:
    """Drops what runtimes write to standard error: their errors are exceptions."""
    kept = os.dup(2)
    with open(os.devnull, "w") as nothing:  # noqa: PTH123  its number is needed
        os.dup2(nothing.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return value


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    raise SystemExit(main())
