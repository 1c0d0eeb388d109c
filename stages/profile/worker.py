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

from stages import dataset, recipe
from stages.errors import HalfstepError
from stages.profile.graph import graph_dtypes
from stages.profile.records import Task, TraceTaken

DROPPED_MARKERS = 2  # the profiler leaves out the first and the last marked step


def serve(connection: Connection, task: Task) -> None:
    """Answers requests `(method, arguments)` with `(True, result)` or `(False, message)` until the line is closed."""
    worker: Worker | None = None
    while True:
        try:
            method, arguments = connection.recv()
        except (EOFError, KeyboardInterrupt):
            return
        try:
            worker = worker or Worker(task)
            connection.send((True, getattr(worker, method)(*arguments)))
        except (HalfstepError, tf.errors.OpError) as error:
            connection.send((False, " ".join(str(error).split())[:500]))


class Worker:
    """A variant, built and compiled as `train` does it, with the input pipeline that `train` uses."""

    def __init__(self, task: Task) -> None:
        prepared = dataset.open_prepared()
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
        }

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
