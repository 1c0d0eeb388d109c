"""The process that times one file with its runtime, without TensorFlow unless that is the runtime."""

from __future__ import annotations

import math
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Protocol

import numpy as np

from halfstep.errors import one_line
from halfstep.profile.inference_worker import InferenceWorker, answer_calls
from halfstep.profile.records import ArmSettings, Calibration
from halfstep.results.profile import Configuration, InForce
from halfstep.serve import bench
from halfstep.serve.records import ServedTrial
from halfstep.system.quiet import quiet
from halfstep.words.formats import FORMATS

_TRIES = 4  # to find how many calls take `ROW_MS`
ROW_MS = 1.0  # a row of inference.csv is as many calls as take so long together


def serve(connection: Connection, trial: ServedTrial) -> None:
    """Answers the calls of the parent."""

    def described(error: Exception) -> str:
        return one_line(f"{FORMATS[trial.format].label}: {error or type(error).__name__}", 500)

    answer_calls(connection, lambda: FormatWorker(trial), described)


class Runtime(Protocol):
    """What predicts: a runtime of `bench`, or Keras.

    Attributes:
        device: `CPU` or `GPU`.
        precision: in which it computes.
    """

    device: str
    precision: str

    def predictor(self, inputs: bench.Arrays) -> bench.Call:
        """What predicts inputs of these shapes."""


class FormatWorker(InferenceWorker):
    """Times a file: single calls one after the other, whose mean over 1 ms is a row."""

    def __init__(self, trial: ServedTrial) -> None:
        super().__init__()
        self._trial = trial
        with np.load(trial.inputs, allow_pickle=False) as stored:
            self._examples = [stored[name] for name in stored.files]
        self._calls: dict[int, tuple[bench.Call, list[list[np.ndarray]]]] = {}
        self._together: dict[int, int] = {}  # calls a row, by batch size
        with quiet():  # LiteRT tells of its kernels
            self._runtime = self._loaded()
            self._call(1)

    def _loaded(self) -> Runtime:
        trial = self._trial
        assert trial.file is not None, "Keras has a worker of its own"
        return load(trial.format, trial.file, trial.served_threads)

    def _call(self, batch_size: int) -> tuple[bench.Call, list[list[np.ndarray]]]:
        if batch_size not in self._calls:
            ring = bench.ring_of(self._examples, batch_size)
            self._calls[batch_size] = self._runtime.predictor(ring[0]), ring
        return self._calls[batch_size]

    def infer(self, batch_size: int, calls: int) -> list[float]:
        """Milliseconds of a call, as the mean of a row, `calls` times."""
        call, ring = self._call(batch_size)
        together = self._together.get(batch_size, 1)
        return [float(bench.times_ns(call, ring, 0, together).mean()) / 1e6 for _ in range(calls)]

    def prepare_inference(self, batch_sizes: Sequence[int]) -> None:
        """Compiles the prediction at each batch size, and finds how many calls are a row."""
        with quiet():  # TensorFlow tells of kernels that it lacks
            super().prepare_inference(batch_sizes)
        for size in batch_sizes:
            for _ in range(_TRIES):  # the first calls take longer
                self._together[size] = max(1, math.ceil(ROW_MS / min(self.infer(size, 3))))

    def calibrate(self, batch_sizes: Sequence[int]) -> Calibration:
        """What a row of calls costs at each batch size."""
        latency_ms, cold_calls = self._calibrated_latencies(batch_sizes)
        row_ms = {size: ms * self._together.get(size, 1) for size, ms in latency_ms.items()}
        return Calibration(None, 0.0, 0, None, row_ms, cold_calls)

    def settings(self) -> ArmSettings:
        """How this format runs."""
        trial, runtime = self._trial, self._runtime
        configuration = Configuration(
            device="GPU" if runtime.device == "GPU" else "CPU",
            input_shape=tuple(self._examples[0].shape[1:]) if len(self._examples) == 1 else None,
            parameters=trial.parameters,
            optimizer="none",
            op_determinism=False,
            layer_widths=(),
            data_sha256=trial.prepared_sha256 or "",
        )
        in_force = InForce(
            policy=runtime.precision,
            xla=trial.format == "keras" and bool(trial.variant.xla),
            tf32=trial.variant.tf32,
            onednn=trial.variant.uses_onednn,
            batch_size=len(self._examples[0]),
            threads=trial.served_threads or 0,
        )
        return ArmSettings(configuration, in_force)


def load(name: str, file: Path, threads: int | None = None) -> bench.Runtime:
    """A file with the runtime of its format, in the precision that the row is about."""
    return bench.load(file, threads, FORMATS[name].precision)
