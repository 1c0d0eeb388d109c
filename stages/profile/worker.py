"""The process that measures one arm: it receives calls and returns raw times.

The fork server imports this module once, because importing TensorFlow takes 5 to 10 seconds. No operation may run at
import: a device that has been used does not survive a fork.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from stages import dataset, files, models, precision, recipe
from stages.errors import HalfstepError, ProfileError
from stages.profile.records import ArmConfig, ArmSettings, TraceRecord
from stages.profile.trace.graph_dtypes import graph_dtypes
from stages.results.profile import Configuration, InForce, SameWeights
from stages.results.training import MODEL, read_probabilities
from stages.tensorflow_import import is_op_determinism_enabled, tf

COMPILING_STEPS = 2
DROPPED_MARKERS = 2  # the profiler drops the first and the last marked step


def serve(connection: Connection, make_worker: Callable[[ArmConfig], Worker], config: ArmConfig) -> None:
    """Receives `(method, arguments)` and sends `(True, result)` or `(False, message)` until the connection closes."""
    worker: Worker | None = None
    while True:
        try:
            method, arguments = connection.recv()
        except (EOFError, ConnectionError):
            return
        try:
            worker = worker or make_worker(config)
            answer = True, getattr(worker, method)(*arguments)
        except (HalfstepError, tf.errors.OpError) as error:
            answer = False, " ".join(str(error).split())[:500]
        with suppress(ConnectionError):  # the parent has ended, or needs no more results
            connection.send(answer)


class Worker:
    """A variant with the model and the input pipeline that `train` uses."""

    def __init__(self, config: ArmConfig) -> None:
        prepared = dataset.open_prepared(verified_sha256=config.prepared_sha256)
        self._config = config
        self._images = prepared.test.images
        self._model = recipe.compiled_model(
            config.model,
            config.train,
            config.variant,
            input_shape=prepared.image_shape,
            classes=len(prepared.classes),
            steps_per_epoch=dataset.steps_per_epoch(prepared.train, config.train.batch_size),
            seed=config.seed,
        )
        self._model.make_train_function()
        self._batches = iter(dataset.training_batches(prepared.train, config.train, config.seed, steps=2**40))
        self._prepared = prepared
        self._train_cached: Callable[[], Any] | None = None
        self._times_continued = 0
        signal.signal(signal.SIGCONT, self._count_continued)
        self._predict = tf.function(
            lambda pixels: self._model(pixels, training=False), jit_compile=config.variant.xla, reduce_retracing=False
        )

    def warm_up(self, steps: int) -> None:
        """Compiles the training step and runs it `steps` times."""
        self._train(steps)

    def train_round(self, steps: int) -> float:
        """Milliseconds for `steps` training steps; the clock is read once, after the device is synchronised."""
        self._drain_input_buffer()
        return self._timed(lambda: self._train(steps))

    def train_round_cached(self, steps: int) -> float:
        """Milliseconds for `steps` training steps on one batch cached on the device, without the input pipeline."""
        if self._train_cached is None:
            self._train_cached = self._cached_step()
            self._repeat(self._train_cached, COMPILING_STEPS)
        step = self._train_cached
        return self._timed(lambda: self._repeat(step, steps))

    def train_steps(self, steps: int) -> list[float]:
        """Milliseconds of each of `steps` training steps; the device is synchronised after each."""
        self._drain_input_buffer()
        return [self._timed(lambda: self._train(1)) for _ in range(steps)]

    def infer(self, batch_size: int, calls: int) -> list[float]:
        """Milliseconds of each of `calls` predictions, from uint8 pixels on the host to probabilities on the host.

        One untimed call precedes them: it compiles in the first turn, and warms the caches in later turns.
        """
        pixels = np.resize(self._images[:batch_size], (batch_size, *self._images.shape[1:]))

        def call() -> np.ndarray:
            return np.asarray(self._predict(tf.constant(pixels)))

        call()
        return [self._timed(call) for _ in range(calls)]

    def trace(self, directory: Path, steps: int) -> TraceRecord:
        """Traces at least `steps` training steps into `directory`, between two untraced rounds of the same length."""
        marked = steps + DROPPED_MARKERS
        before = self.train_round(marked)
        self._drain_input_buffer()
        tf.profiler.experimental.start(str(directory))
        try:
            traced = self._timed(lambda: self._train(marked, mark=True))
        finally:
            tf.profiler.experimental.stop()
        after = self.train_round(marked)
        return TraceRecord(
            directory=directory,
            marked_steps=marked,
            plain_step_time_ms=(before + after) / (2 * marked),
            traced_step_time_ms=traced / marked,
            graph_dtypes=graph_dtypes(self._model.train_function, self._batches),
        )

    def same_weights(self, trained: Path) -> SameWeights:
        """Evaluates another variant's trained weights in this variant's precision, on the test images.

        Args:
            trained: the folder of that training.

        Raises:
            DataError: a file of the training is missing.
            CorruptFileError: a file of the training is damaged.
            ProfileError: the weights do not fit this model.
        """
        files.verify_manifest(trained)
        expected, found = read_probabilities(trained), self._predictions_with(trained / MODEL)
        classes = found.argmax(axis=1)
        return SameWeights(
            images=len(found),
            agreement=float((classes == expected.argmax(axis=1)).mean()),
            max_probability_difference=float(np.abs(found - expected).max()),
            accuracy=float((classes == self._prepared.test.labels).mean()),
        )

    def times_continued(self) -> int:
        """How often this process has been continued after it was stopped, as by Ctrl-Z and `fg`."""
        return self._times_continued

    def settings(self) -> ArmSettings:
        """How this arm runs. Call it before any inference, so that the peak memory is that of training."""
        return ArmSettings(self._configuration(), self._in_force(), peak_gpu_memory_bytes())

    def warnings(self) -> list[str]:
        """Warnings about this process for the reader of the results."""
        unused = precision.unused_gpu()
        return [] if unused is None else [f"{unused}; measured on the CPU"]

    def _count_continued(self, *_: object) -> None:
        self._times_continued += 1

    def _configuration(self) -> Configuration:
        return Configuration(
            device="GPU" if tf.config.list_logical_devices("GPU") else "CPU",
            batch_size=self._config.train.batch_size,
            input_shape=self._images.shape[1:],
            parameters=self._model.count_params(),
            optimizer=self._config.train.optimizer,
            intra_op_threads=tf.config.threading.get_intra_op_parallelism_threads(),
            inter_op_threads=tf.config.threading.get_inter_op_parallelism_threads(),
            input_threads=self._config.train.input_threads,
            op_determinism=is_op_determinism_enabled(),
            layer_widths=tuple(sorted({width for layer in self._model._flatten_layers() for width in _widths(layer)})),
            data_sha256=self._prepared.sha256,
        )

    def _in_force(self) -> InForce:
        return InForce(
            policy=self._model.dtype_policy.name,
            xla=bool(self._model.jit_compile),
            tf32=tf.config.experimental.tensor_float_32_execution_enabled(),
            onednn=precision.onednn_is_on(),
        )

    def _cached_step(self) -> Callable[[], Any]:
        batch = tuple(tf.identity(tensor) for tensor in next(self._batches))  # on the device from here on
        compiled = tf.function(self._model.train_step, jit_compile=self._config.variant.xla, autograph=False)
        return lambda: compiled(batch)

    def _repeat(self, step: Callable[[], Any], steps: int) -> None:
        for _ in range(steps):
            step()
        tf.test.experimental.sync_devices()

    def _predictions_with(self, weights: Path) -> np.ndarray:
        model = models.build(self._config.model, self._prepared.image_shape, len(self._prepared.classes))
        try:
            model.load_weights(weights)
        except (ValueError, OSError, KeyError) as error:
            reason = " ".join(str(error).split())[:200]
            raise ProfileError(
                f"{weights} does not fit model.name = {self._config.model.name} ({reason}): "
                f"run `dvc repro -f -s {files.stage_of(weights)}`"
            ) from error
        predict = tf.function(lambda pixels: model(pixels, training=False), jit_compile=False, reduce_retracing=True)
        size = self._config.train.batch_size
        batches = (self._images[start : start + size] for start in range(0, len(self._images), size))
        return np.concatenate([np.asarray(predict(tf.constant(batch))) for batch in batches])

    def _drain_input_buffer(self) -> None:
        # The input pipeline fills its buffer during the other arms' turns. Steps on buffered batches are faster than
        # in a training, where the pipeline runs at the same time.
        self._train(dataset.buffered_batches(self._config.train))

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


def peak_gpu_memory_bytes() -> int | None:
    """Peak of the GPU's allocator in this process; None without a GPU."""
    if not tf.config.list_logical_devices("GPU"):
        return None
    return int(tf.config.experimental.get_memory_info("GPU:0")["peak"])


def _widths(layer: Any) -> list[int]:
    """Input and output channels of a layer's kernel: tensor cores need multiples of 8."""
    kernel = getattr(layer, "kernel", None)
    return [int(size) for size in kernel.shape[-2:]] if kernel is not None and len(kernel.shape) >= 2 else []
