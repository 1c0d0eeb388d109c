"""The process that tries a device, and prints a JSON object for each thing that it does. It imports TensorFlow.

`python -m halfstep.environment.gpu_operations --device GPU --xla float32 bfloat16`
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from halfstep.errors import one_line
from halfstep.tensorflow_import import tf

_PLANES = {"GPU": "/device:GPU:0", "CPU": "/host:CPU"}
_PLANE_NAME = 0x12  # field 2 of the message XPlane in tsl/profiler/protobuf/xplane.proto
_LONGEST_ERROR = 2000


def main() -> None:
    """Lists the devices; then, if there is one of the type, computes on it and traces it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("dtypes", nargs="+")
    parser.add_argument("--device", choices=sorted(_PLANES), default="GPU")
    parser.add_argument("--xla", action="store_true")
    arguments = parser.parse_args()
    _say(step="listing the devices")
    devices = tf.config.list_physical_devices(arguments.device)
    _say(devices=len(devices))
    if not devices:
        return
    for device in devices if arguments.device == "GPU" else ():
        tf.config.experimental.set_memory_growth(device, True)
    try:
        with tf.device(f"/{arguments.device}:0"):
            _compute(arguments.dtypes, (False, True) if arguments.xla else (False,))
    except Exception as error:  # every error of TensorFlow or CUDA is a result
        _say(error=one_line(str(error), _LONGEST_ERROR))
        raise SystemExit(1) from None
    _say(traced=_is_traced(arguments.device))


def _compute(dtypes: list[str], compiled: tuple[bool, ...]) -> None:
    """Multiplies and convolves ones, so that every result is exact in all data types."""
    for dtype in dtypes:
        for jit_compile in compiled:
            where = f"in {dtype}{' under XLA' if jit_compile else ''}"
            _check(f"a matrix multiplication {where}", tf.matmul, _squares(dtype), jit_compile, 64)
            _check(f"a convolution {where}", _convolution, _images(dtype), jit_compile, 72)


def _check(name: str, operation: Callable[..., Any], inputs: tuple[Any, Any], jit_compile: bool, expected: int) -> None:
    _say(step=name)
    # The inputs are arguments: XLA would compute an operation on constants when it compiles.
    run = tf.function(operation, jit_compile=True) if jit_compile else operation
    actual = tf.cast(run(*inputs), "float32").numpy()
    if not (actual == expected).all():
        raise ArithmeticError(f"a wrong result: {actual.flat[0]} instead of {expected}")


def _squares(dtype: str) -> tuple[Any, Any]:
    return tf.ones((64, 64), dtype), tf.ones((64, 64), dtype)


def _images(dtype: str) -> tuple[Any, Any]:
    return tf.ones((8, 16, 16, 8), dtype), tf.ones((3, 3, 8, 8), dtype)


def _convolution(images: Any, kernel: Any) -> Any:
    return tf.nn.conv2d(images, kernel, 1, "VALID")


def _is_traced(device: str) -> bool:
    """Whether a trace of an operation has a plane of the device. A plane is found by its name's bytes."""
    _say(step="a trace")
    name = _PLANES[device].encode()
    with tempfile.TemporaryDirectory() as folder:
        try:
            tf.profiler.experimental.start(folder)
            with tf.device(f"/{device}:0"):
                tf.matmul(*_squares("float32")).numpy()
            tf.profiler.experimental.stop()
        except Exception as error:  # a training needs no trace
            print(error, file=sys.stderr)
            return False
        traces = [path.read_bytes() for path in Path(folder).rglob("*.xplane.pb")]
    return any(bytes([_PLANE_NAME, len(name)]) + name in trace for trace in traces)


def _say(**event: Any) -> None:
    print(json.dumps(event), flush=True)


if __name__ == "__main__":
    main()
