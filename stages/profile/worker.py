"""The process that a variant lives in: it waits for its turn, takes it, and answers with the raw times.

This module is imported once, by the server that the processes are forked from, so that TensorFlow's import (5 to 10
seconds) is paid once. Nothing here may run an operation at import: a device that is in use does not survive a fork.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import config as tf_config  # the switch can be read nowhere else

from stages import dataset, files, models, precision, recipe
from stages.errors import HalfstepError, ProfileError
from stages.profile.graph import graph_dtypes
from stages.profile.records import SameWeights, Task, TraceTaken

COMPILING_STEPS = 2
DROPPED_MARKERS = 2  # the profiler leaves out the first and the last marked step


def serve(connection: Connection, make_worker: Callable[[Task], Worker], task: Task) -> None:
    """Answers requests `(method, arguments)` with `(True, result)` or `(False, message)` until the line is closed."""
    worker: Worker | None = None
    while True:
        try:
            method, arguments = connection.recv()
        except (EOFError, KeyboardInterrupt):
            return
        try:
            worker = worker or make_worker(task)
            connection.send((True, getattr(worker, method)(*arguments)))
        except (HalfstepError, tf.errors.OpError) as error:
            connection.send((False, " ".join(str(error).split())[:500]))


class Worker:
    """A variant, built and compiled as `train` does it, with the input pipeline that `train` uses."""

    def __init__(self, task: Task) -> None:
        prepared = dataset.open_prepared(checked_sha256=task.prepared_sha256)
        self._task = task
        self._images = prepared.test.images
        self._model = recipe.compiled_model(
            task.model,
            task.train,
            task.variant,
            input_shape=prepared.image_shape,
            classes=len(prepared.classes),
            steps_per_epoch=dataset.steps_per_epoch(prepared.train, task.train.batch_size),
            seed=task.seed,
        )
        self._model.make_train_function()
        self._batches = iter(dataset.training_batches(prepared.train, task.train, task.seed, steps=2**40))
        self._prepared = prepared
        self._train_on_device: Callable[[], Any] | None = None
        self._predict = tf.function(
            lambda pixels: self._model(pixels, training=False), jit_compile=task.variant.xla, reduce_retracing=False
        )

    def warm_up(self, steps: int) -> None:
        """Compiles the training step, and lets caches and clocks settle."""
        self._train(steps)

    def train_round(self, steps: int) -> float:
        """Milliseconds that `steps` training steps take; the clock is read once, after the device is done."""
        self._lead_in()
        return self._timed(lambda: self._train(steps))

    def train_round_on_device(self, steps: int) -> float:
        """Milliseconds that `steps` training steps take on one batch that stays on the device, without an input."""
        if self._train_on_device is None:
            self._train_on_device = self._step_on_device()
            self._repeat(self._train_on_device, COMPILING_STEPS)
        step = self._train_on_device
        return self._timed(lambda: self._repeat(step, steps))

    def train_steps(self, steps: int) -> list[float]:
        """Milliseconds of each of `steps` training steps, the device waited for after each."""
        self._lead_in()
        return [self._timed(lambda: self._train(1)) for _ in range(steps)]

    def infer(self, batch_size: int, calls: int) -> list[float]:
        """Milliseconds of each of `calls` predictions: from uint8 pixels on the host to probabilities on the host.

        One more goes before them, untimed: it compiles at the first turn, and finds cold caches at every other.
        """
        pixels = np.resize(self._images[:batch_size], (batch_size, *self._images.shape[1:]))

        def call() -> np.ndarray:
            return np.asarray(self._predict(tf.constant(pixels)))

        call()
        return [self._timed(call) for _ in range(calls)]

    def trace(self, directory: Path, steps: int) -> TraceTaken:
        """Traces training steps into `directory`, so that `steps` come back; as many before and after go without."""
        marked = steps + DROPPED_MARKERS
        before = self.train_round(marked)
        self._lead_in()
        tf.profiler.experimental.start(str(directory))
        try:
            traced = self._timed(lambda: self._train(marked, mark=True))
        finally:
            tf.profiler.experimental.stop()
        after = self.train_round(marked)
        return TraceTaken(
            directory=directory,
            marked_steps=marked,
            plain_step_time_ms=(before + after) / (2 * marked),
            traced_step_time_ms=traced / marked,
            graph_dtypes=graph_dtypes(self._model.train_function, self._batches),
        )

    def same_weights(self, trained: Path) -> SameWeights:
        """What another variant's trained weights predict in this one's precision, beside what they predicted there.

        Args:
            trained: the folder of a training, with `model.keras` and `predictions.npy`.

        Raises:
            CorruptFileError: a file of the training is not what was written.
            ProfileError: the weights do not fit this model.
        """
        files.check_manifest(trained)
        theirs = np.load(trained / "predictions.npy", allow_pickle=False)
        ours = self._predictions_with(trained / "model.keras")
        same_class = ours.argmax(axis=1) == theirs.argmax(axis=1)
        return SameWeights(
            images=len(ours),
            agreement=float(same_class.mean()),
            max_probability_difference=float(np.abs(ours - theirs).max()),
            accuracy=float((ours.argmax(axis=1) == self._prepared.test.labels).mean()),
        )

    def peak_device_bytes(self) -> int | None:
        """Peak of the GPU allocator since the start, before any inference; None without a GPU."""
        if not tf.config.list_logical_devices("GPU"):
            return None
        return int(tf.config.experimental.get_memory_info("GPU:0")["peak"])

    def configuration(self) -> dict[str, Any]:
        """What must not differ between variants but for what their entries say."""
        return {
            "device": "GPU" if tf.config.list_logical_devices("GPU") else "CPU",
            "batch_size": self._task.train.batch_size,
            "input_shape": list(self._images.shape[1:]),
            "parameters": self._model.count_params(),
            "optimizer": self._task.train.optimizer,
            "intra_op_threads": tf.config.threading.get_intra_op_parallelism_threads(),
            "inter_op_threads": tf.config.threading.get_inter_op_parallelism_threads(),
            "input_threads": self._task.train.input_threads,
            "op_determinism": tf_config.is_op_determinism_enabled(),
            "layer_widths": sorted({width for layer in self._model._flatten_layers() for width in _widths(layer)}),
            "data_sha256": self._prepared.sha256,
        }

    def warnings(self) -> list[str]:
        """What whoever reads the numbers should know of this process."""
        unused = precision.unused_gpu()
        return [] if unused is None else [f"{unused}; measured on the CPU"]

    def in_force(self) -> dict[str, Any]:
        """What the variant's entry sets, as it is in this process: the only settings that may differ."""
        return {
            "policy": self._model.dtype_policy.name,
            "xla": bool(self._model.jit_compile),
            "tf32": tf.config.experimental.tensor_float_32_execution_enabled(),
            "onednn": precision.onednn_is_on(),
        }

    def _step_on_device(self) -> Callable[[], Any]:
        batch = tuple(tf.identity(tensor) for tensor in next(self._batches))  # lies on the device from here on
        compiled = tf.function(self._model.train_step, jit_compile=self._task.variant.xla, autograph=False)
        return lambda: compiled(batch)

    def _repeat(self, step: Callable[[], Any], steps: int) -> None:
        for _ in range(steps):
            step()
        tf.test.experimental.sync_devices()

    def _predictions_with(self, weights: Path) -> np.ndarray:
        model = models.build(self._task.model, self._prepared.image_shape, len(self._prepared.classes))
        try:
            model.load_weights(weights)
        except (ValueError, OSError, KeyError) as error:
            told = " ".join(str(error).split())[:200]
            raise ProfileError(f"{weights} does not fit model.name {self._task.model.name} ({told})") from error
        predict = tf.function(lambda pixels: model(pixels, training=False), jit_compile=False, reduce_retracing=True)
        size = self._task.train.batch_size
        batches = (self._images[start : start + size] for start in range(0, len(self._images), size))
        return np.concatenate([np.asarray(predict(tf.constant(batch))) for batch in batches])

    def _lead_in(self) -> None:
        # While the others had their turns the input pipeline has filled its buffer: steps that find their batch ready
        # are not the steps of a training, in which the pipeline works beside them.
        self._train(dataset.buffered_batches(self._task.train))

    def _train(self, steps: int, *, mark: bool = False) -> None:
        for step in range(steps):
            if mark:
                with tf.profiler.experimental.Trace("train", step_num=step, _r=1):
                    self._model.train_function(self._batches)
            else:
                self._model.train_function(self._batches)
        tf.test.experimental.sync_devices()

    def _timed(self, work: Callable[[], Any]) -> float:
        started_s = time.perf_counter()
        work()
        return (time.perf_counter() - started_s) * 1e3


def _widths(layer: Any) -> list[int]:
    """Channels that a layer's matrix work reads and writes: those that tensor cores want in multiples of 8."""
    kernel = getattr(layer, "kernel", None)
    return [int(size) for size in kernel.shape[-2:]] if kernel is not None and len(kernel.shape) >= 2 else []
