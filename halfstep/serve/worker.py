"""The process that times one format: it receives calls and returns raw times, as that of `profile` does."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from halfstep.params.derived import GPU_THREAD_MODE
from halfstep.profile import peak_memory, worker
from halfstep.profile.records import ArmSettings, Calibration
from halfstep.results.profile import Configuration, InForce
from halfstep.serve import runtimes
from halfstep.serve.records import ServedTrial
from halfstep.tasks import building, precision
from halfstep.tensorflow_import import keras, tf
from halfstep.words.formats import KERAS

_TRIES = 4  # to find how many calls take `ROW_MS`
ROW_MS = 1.0  # a row of inference.csv is as many calls as take so long together


class FormatWorker(worker.InferenceWorker):
    """Predicts in one format."""

    def __init__(self, trial: ServedTrial) -> None:
        super().__init__()
        self._trial, self._imported_s = trial, worker.IMPORT_S
        precision.activate(trial.variant)
        with np.load(trial.inputs, allow_pickle=False) as stored:
            self._inputs = [stored[name] for name in stored.files]
        self._predict = _keras(trial) if trial.file is None else runtimes.load(trial.format, trial.file, trial.threads)
        self._startup_s = 0.0
        with runtimes.quiet():  # LiteRT tells of its kernels
            self._predict([array[:1] for array in self._inputs])

    def _prediction_of(self, batch_size: int) -> Callable[[], Any]:
        inputs = [np.resize(array, (batch_size, *array.shape[1:])) for array in self._inputs]
        return lambda: self._predict(inputs)

    def prepare_inference(self, batch_sizes: Sequence[int]) -> None:
        """Compiles the prediction at each batch size, and finds how many calls are timed together."""
        super().prepare_inference(batch_sizes)
        self._startup_s = self._startup_s or self._imported_s + time.process_time()
        for size in batch_sizes:
            for _ in range(_TRIES):  # the first calls take longer
                self._calls_together[size] = max(1, math.ceil(ROW_MS / min(self.infer(size, 3))))

    def calibrate(self, batch_sizes: Sequence[int]) -> Calibration:
        """What a row of calls costs at each batch size."""
        latency_ms, cold_calls = self._calibrated_latencies(batch_sizes)
        row_ms = {size: ms * self._calls_together.get(size, 1) for size, ms in latency_ms.items()}
        peak = None
        with suppress(*worker.MEMORY_ERRORS):
            peak = peak_memory.peak_bytes()
        return Calibration(None, 0.0, 0, peak, self._startup_s, row_ms, cold_calls)

    def settings(self) -> ArmSettings:
        """How this format runs."""
        on_gpu = tf.config.list_logical_devices("GPU") and self._trial.format in (KERAS, "saved_model")
        configuration = Configuration(
            device="GPU" if on_gpu else "CPU",
            input_shape=tuple(self._inputs[0].shape[1:]) if len(self._inputs) == 1 else None,
            parameters=self._trial.parameters,
            optimizer="none",
            op_determinism=False,
            layer_widths=(),
            data_sha256=self._trial.prepared_sha256 or "",
        )
        variant = self._trial.variant
        in_force = InForce(
            policy=variant.policy if self._trial.file is None else "float32",
            xla=bool(variant.xla) and self._trial.file is None,
            tf32=variant.tf32,
            onednn=precision.onednn_is_on(),
            batch_size=len(self._inputs[0]),
            threads=self._trial.threads,
            gpu_thread_mode=os.environ.get(GPU_THREAD_MODE),
        )
        return ArmSettings(configuration, in_force)


def _keras(trial: ServedTrial) -> runtimes.Predict:
    """The compiled prediction of the variant, as `profile` times it."""
    task = building.ready(trial)
    structure, model = task.inputs(1), task.model
    predict = worker.compiled_prediction(model, model.jit_compile)

    def flat(inputs: runtimes.Arrays) -> list[Any]:
        given = keras.tree.pack_sequence_as(structure, [tf.constant(array) for array in inputs])
        return [np.asarray(leaf) for leaf in keras.tree.flatten(predict(given))]

    return flat
