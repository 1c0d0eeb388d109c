"""Is what halfstep times of a served file what a user's own loop takes? Both in turns, in one process, by format.

    python -m tools.serving_defaults            # quiet
    python -m tools.serving_defaults --load     # beside a program that uses half of a core

The user's loop is the first example of each runtime's documentation, with its defaults; both take the same inputs in
turns. It needs the packages of the extra `serve`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd

from halfstep.serve import bench

FORMATS = ("saved_model", "litert", "litert_float16", "litert_int8", "litert_int8_full", "onnx", "openvino")
BATCH_SIZES = (1, 32)
ROW_NS, ROWS_A_TURN = 1_000_000, 6
WITHIN = 0.15
_HALF_A_CORE = """
import time
while True:
    end_s = time.perf_counter() + 0.005
    while time.perf_counter() < end_s:
        pass
    time.sleep(0.005)
"""


def write_files(folder: Path) -> list[str]:
    """Writes each network in each format, and its inputs; returns the names of the networks."""
    import keras

    from examples.encoder import encoder
    from halfstep.params.schema import ModelParams
    from halfstep.serve.writing import Writer
    from halfstep.system.quiet import quiet
    from halfstep.tasks.images.models import build

    keras.utils.set_random_seed(0)
    steps = keras.Input((40, 1))
    lstm = keras.layers.LSTM(64)(keras.layers.LSTM(64, return_sequences=True)(steps))
    random = np.random.default_rng(0)
    networks: Mapping[str, tuple[Any, Any]] = {
        "cnn": (
            build(ModelParams(name="cnn"), (32, 32, 3), 10),
            random.integers(0, 256, (64, 32, 32, 3)).astype(np.uint8),
        ),
        "resnet20_64": (
            build(ModelParams(name="resnet20"), (64, 64, 3), 10),
            random.integers(0, 256, (64, 64, 64, 3)).astype(np.uint8),
        ),
        "encoder": (encoder(64, 128, 2), random.integers(0, 1000, (64, 64)).astype(np.int32)),
        "lstm": (keras.Model(steps, keras.layers.Dense(1)(lstm)), random.normal(size=(64, 40, 1)).astype(np.float32)),
    }
    for name, (model, x) in networks.items():
        (folder / name).mkdir()
        np.savez(folder / name / "inputs.npz", x)
        data = SimpleNamespace(from_step=lambda *_, x=x: iter([(x, np.arange(len(x)) % 10)]))
        task = SimpleNamespace(model=model, inputs=lambda rows, x=x: x[:rows], training=data)
        writer = Writer(task, [x], folder / name / "scratch")  # type: ignore[arg-type]
        for one in FORMATS:
            with quiet():
                writer.write(one, folder / name / one / f"model{bench_suffix(one)}")
    return list(networks)


def bench_suffix(name: str) -> str:
    """The suffix of a format's file."""
    from halfstep.words.formats import FORMATS as KNOWN

    return KNOWN[name].suffix


def users_loop(path: Path, x: np.ndarray) -> Callable[[np.ndarray], Any]:
    """One call as a user writes it."""
    if path.suffix == ".onnx":
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(path, options)
        name = session.get_inputs()[0].name
        return lambda x: session.run(None, {name: x})[0]
    if path.suffix == ".xml":
        import openvino

        model = openvino.Core().compile_model(path, "CPU")
        return lambda x: model([x])[0]
    if path.suffix == "":
        import tensorflow as tf

        loaded = tf.saved_model.load(str(path))
        return lambda x: loaded.serve(tf.constant(x)).numpy()
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(str(path))
    before, after = interpreter.get_input_details()[0], interpreter.get_output_details()[0]
    interpreter.resize_tensor_input(before["index"], x.shape)
    interpreter.allocate_tensors()
    (scale, zero), (out_scale, out_zero) = before["quantization"], after["quantization"]

    def call(x: np.ndarray) -> Any:
        if x.dtype != before["dtype"]:
            x = np.clip(np.round(x / scale) + zero, -128, 127).astype(np.int8)
        interpreter.set_tensor(before["index"], x)
        interpreter.invoke()
        y = interpreter.get_tensor(after["index"])
        return (y.astype(np.float32) - out_zero) * np.float32(out_scale) if out_scale else y

    return call


def cell(path: Path, inputs: Path, batch_size: int, seconds: float) -> dict[str, Any]:
    """Rows of 1 ms of both, in turns: their 10th percentile and median, in milliseconds."""
    import time

    with np.load(inputs) as stored:
        ring = bench.ring_of([stored[name] for name in stored.files], batch_size)
    mine = bench.load(path).predictor(ring[0])
    theirs = users_loop(path, ring[0][0])
    arms: dict[str, Callable[[Any], Any]] = {"halfstep": mine, "user": lambda inputs: theirs(inputs[0])}
    together = {name: max(1, int(ROW_NS / np.median(bench.times_ns(call, ring, 0.1)))) for name, call in arms.items()}
    rows: dict[str, list[float]] = {name: [] for name in arms}
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s or len(rows["user"]) < 4 * ROWS_A_TURN:
        for name, call in arms.items():
            turn = [bench.times_ns(call, ring, 0, together[name]).mean() / 1e6 for _ in range(ROWS_A_TURN)]
            rows[name] += turn[1:]
    return {
        f"{name} p{rank}": float(np.percentile(values, rank)) for name, values in rows.items() for rank in (10, 50)
    } | {"rows": len(rows["user"])}


@contextmanager
def half_a_core(wanted: bool) -> Iterator[None]:
    """In the block, another program uses half of a core."""
    if not wanted:
        yield
        return
    program = subprocess.Popen([sys.executable, "-c", _HALF_A_CORE])
    try:
        yield
    finally:
        program.kill()
        program.wait()


def main() -> None:
    """Prints the table, and the share of cells that are within 15 %."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--load", action="store_true")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--cell", nargs=3, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.cell:
        path, inputs, size = asked.cell
        print(json.dumps(cell(Path(path), Path(inputs), int(size), asked.seconds)))
        return
    table = []
    with tempfile.TemporaryDirectory() as root:
        networks = write_files(Path(root))
        with half_a_core(asked.load):
            for network in networks:
                for name in FORMATS:
                    for size in BATCH_SIZES:
                        path = Path(root, network, name, f"model{bench_suffix(name)}")
                        given = [str(path), str(Path(root, network, "inputs.npz")), str(size)]
                        command = [sys.executable, "-m", "tools.serving_defaults", "--cell", *given]
                        ended = subprocess.run(
                            [*command, "--seconds", str(asked.seconds)],
                            stdout=subprocess.PIPE,
                            stderr=subprocess.DEVNULL,
                            text=True,
                            check=True,
                            env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"},
                        )
                        table.append({"network": network, "format": name, "batch": size, **json.loads(ended.stdout)})
    frame = pd.DataFrame(table)
    for rank in (10, 50):
        frame[f"ratio p{rank}"] = frame[f"halfstep p{rank}"] / frame[f"user p{rank}"]
    print(frame.to_string(index=False, float_format="%.4g"))
    for rank in (10, 50):
        inside = (frame[f"ratio p{rank}"] - 1).abs() <= WITHIN
        print(f"within {WITHIN:.0%} by p{rank}: {inside.sum()} of {len(frame)} cells")


if __name__ == "__main__":
    main()
