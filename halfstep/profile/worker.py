"""The process that measures one arm: it receives calls and returns raw times.

The fork server imports this module once, because importing TensorFlow takes 5 to 10 seconds. No operation may run at
import: a device that has been used does not survive a fork.
"""

from __future__ import annotations

import itertools
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from halfstep.errors import HalfstepError, ProfileError, TraceError
from halfstep.machine import fingerprint
from halfstep.operations.op_kinds import Layers
from halfstep.params.derived import GPU_THREAD_MODE
from halfstep.profile import peak_memory
from halfstep.profile.audit import audit
from halfstep.profile.graph_dtypes import graph_dtypes
from halfstep.profile.inference_worker import InferenceWorker, answer_calls
from halfstep.profile.plan import DROPPED_STEPS, LEADING_STEPS, plain_steps
from halfstep.profile.records import FULL_DISK, ArmSettings, Calibration, FirstStep, TraceRecord
from halfstep.profile.short_trace import ShortTrace
from halfstep.results.artifact import read_array
from halfstep.results.audit import ModelAudit
from halfstep.results.profile import Configuration, InForce
from halfstep.results.training import SCORES, saved_model
from halfstep.system import files, interpreters
from halfstep.tasks import building, precision, user_code
from halfstep.tasks.fit_call import inside
from halfstep.tasks.layers import recorded_scopes, with_model
from halfstep.tasks.trial import Trial
from halfstep.tasks.variables import optimizers_of
from halfstep.tensorflow_import import is_op_determinism_enabled, keras, tf
from halfstep.words.text import MIB

COMPILING_STEPS = 2
MOST_HALVINGS = 24  # of a loss scale, which starts at 2**15; gradients that overflow at any scale stay so
IDLE_S, IDLE_SHARE, MAX_FILLING_S = 0.01, 0.2, 1.0  # a process is idle that uses less of one core for so long
CALIBRATION_MS = 120.0
INPUT_BATCHES = 8
MEMORY_ERRORS = (ValueError, RuntimeError, tf.errors.OpError)  # of an allocator that keeps no statistics
IMPORT_S = time.process_time()  # of the fork server, for all of its processes


def serve(connection: Connection, make_worker: Callable[[Any], InferenceWorker], trial: Trial) -> None:
    """Receives `(method, arguments)` and sends the result, or the message of an error, until the connection closes.

    A script does so in its call of `fit`.
    """
    inside(trial, lambda: answer_calls(connection, lambda: make_worker(trial), lambda error: _described(trial, error)))


def _described(trial: Trial, error: Exception) -> str:
    """An error as the message that is sent in place of an answer."""
    if isinstance(error, tf.errors.ResourceExhaustedError) and FULL_DISK in error.message:
        return f"what XLA compiled cannot be written: {FULL_DISK}"
    if isinstance(error, tf.errors.ResourceExhaustedError):
        details = " ".join(error.message.split())[:160]
        return (
            f"{trial.batch_key} is {trial.train.batch_size}, too large for the memory, of which "
            f"{peak_memory.peak_bytes() / MIB:,.0f} MiB were used ({details}); reduce it"
        )
    if isinstance(error, (HalfstepError, tf.errors.OpError)):
        return " ".join(str(error).split())[:500]
    return f"{trial.subject}: {user_code.describe(error)}"  # of the user's own model or task


class Worker(InferenceWorker):
    """A variant with the model and the input pipeline that `train` uses."""

    def __init__(self, trial: Trial) -> None:
        super().__init__()
        self._trial, self._root = trial, Path.cwd()
        self._task = building.ready(trial)
        self._model = self._task.model
        self._model.steps_per_execution = 1  # `prepare` has said so where a task or script has more
        self._batches: Any = iter(())
        self._train_cached: Callable[[], Any] | None = None
        self._had_time_to_fill = False
        self._scopes: dict[str, str] = {}
        self._steps_run, self._windows = 0, list[int]()  # of the short trace that runs
        self._profiling = ExitStack()
        self._predict = self._prediction(self._model)
        self._inputs: dict[int, Any] = {}

    def warm_up(self, steps: int, drained_batches: int = 0) -> FirstStep:
        """Compiles the training step, runs it `steps` times, and uses up batches that were buffered meanwhile."""
        self._model.make_train_function()
        self._batches = iter(self._task.training.equal_batches())
        with recorded_scopes(self._model) as self._scopes:
            seconds = 1e-3 * self._timed(lambda: self._train(1))
        first_step = FirstStep(seconds, IMPORT_S + time.process_time())
        self._train(steps - 1)
        self._apply_an_update()
        self._take_batches(max(drained_batches, self._task.training.first_pass))  # from then on all are in memory
        return first_step

    def _apply_an_update(self) -> None:
        """Trains until loss scaling has applied a first update.

        It starts at a scale at which gradients may overflow, and skips updates while it halves the scale. The first
        update that is applied takes seconds on a GPU, which loads the code of the optimizer for it.
        """
        for _ in range(MOST_HALVINGS):
            if all(int(item.inner_optimizer.iterations) for item in self._loss_scaling):
                return
            self._train(1)

    def calibrate(self, batch_sizes: Sequence[int]) -> Calibration:
        """What a step, a batch and a call cost, and the peak memory of training steps after the warm-up.

        The batches that were buffered before are used up first: steps that wait for their input do so from the start.
        """
        with suppress(*MEMORY_ERRORS):
            peak_memory.reset_peak()
        first_ms = [self._timed(lambda: self._take_batches(1)) for _ in range(self._task.training.buffered_batches)]
        batch_ms = [self._timed(lambda: self._take_batches(1)) for _ in range(INPUT_BATCHES)]
        buffered = max((batch + 1 for batch, ms in enumerate(first_ms) if ms < np.median(batch_ms) / 2), default=0)
        input_time_ms = (self._task.training.threads or 1) * float(np.mean(batch_ms))
        step_ms = self._timed(lambda: self._train(1))
        steps = max(1, min(100, int(CALIBRATION_MS / step_ms)))
        step_time_ms = self._timed(lambda: self._train(steps)) / steps
        peak = self._peak_bytes()
        latency_ms, cold_calls = self._calibrated_latencies(batch_sizes)
        return Calibration(step_time_ms, input_time_ms, buffered, peak, latency_ms, cold_calls)

    def _peak_bytes(self) -> int | None:
        with suppress(*MEMORY_ERRORS):
            return peak_memory.peak_bytes()
        return None

    def train_round(self, steps: int, lead_in: int = 0, buffered_batches: int = 0) -> float:
        """Milliseconds for `steps` training steps, after `lead_in` untimed ones.

        The clock is read once, after the device is synchronised. `buffered_batches` are used up first if this process
        computed something else since it trained: meanwhile its pipeline filled buffers that a training finds empty.
        """
        if self._had_time_to_fill:
            self._take_batches(buffered_batches)
        self._train(lead_in)
        return self._timed(lambda: self._train(steps))

    def prepare_cached(self) -> None:
        """Compiles the training step on one batch cached on the device."""
        self._train_cached = self._cached_step()
        self._repeat(self._train_cached, COMPILING_STEPS)

    def train_round_cached(self, steps: int) -> float:
        """Milliseconds for `steps` training steps on one batch cached on the device, after an untimed one.

        The input pipeline first fills its buffers, because it would take the processor from the steps.
        """
        assert self._train_cached is not None, "call prepare_cached first"
        step, self._had_time_to_fill = self._train_cached, True
        self._wait_until_idle()
        self._repeat(step, 1)
        return self._timed(lambda: self._repeat(step, steps))

    def train_steps(self, steps: int, lead_in: int = 0) -> list[float]:
        """Milliseconds of each of `steps` training steps; the device is synchronised after each."""
        self._train(lead_in)
        return [self._timed(lambda: self._train(1)) for _ in range(steps)]

    def infer(self, batch_size: int, calls: int) -> list[float]:
        """As of `InferenceWorker`; the input pipeline fills its buffers meanwhile."""
        self._had_time_to_fill = True
        return super().infer(batch_size, calls)

    def _prediction_of(self, batch_size: int) -> Callable[[], Any]:
        if batch_size not in self._inputs:
            self._inputs[batch_size] = self._task.inputs(batch_size)
        inputs = self._inputs[batch_size]
        return lambda: keras.tree.map_structure(
            np.asarray, self._predict(keras.tree.map_structure(tf.constant, inputs))
        )

    def trace(self, directory: Path, steps: int) -> TraceRecord:
        """Traces at least `steps` training steps into `directory`, between two untraced rounds.

        Raises:
            TraceError: the trace cannot be written.
        """
        marked = steps + DROPPED_STEPS
        plain = plain_steps(marked, self._timed(lambda: self._train(1)))
        before = self.train_round(plain)
        with _profiler(self._root / directory):
            traced = self._timed(lambda: self._train(marked, mark=True))
        after = self.train_round(plain)
        return TraceRecord(
            directory=directory,
            marked_steps=marked,
            plain_step_time_ms=(before + after) / (2 * plain),
            traced_step_time_ms=traced / marked,
            graph_dtypes=self._graph_dtypes,
        )

    def steps_run(self) -> int:
        """Training steps so far."""
        return self._steps_run

    def begin_account(self, least_steps: int) -> None:
        """Begins a short trace, after so many training steps in all at least."""
        self._train(max(0, least_steps - self._steps_run))
        self._windows.clear()
        self._account_folder = Path(tempfile.mkdtemp())  # in the folder of all processes, which the stage removes
        self._profiling.enter_context(_profiler(self._account_folder))

    def account_window(self, steps: int, lead_in: int) -> None:
        """Runs a turn of a short trace.

        Args:
            steps: that count: the first one of a turn does not.
            lead_in: untraced steps before.
        """
        try:
            self._train(lead_in)
            self._train(steps + LEADING_STEPS, mark=True, wait=True)
        except BaseException:
            self._profiling.close()  # the next trace could not begin
            raise
        self._windows.append(steps)

    def end_account(self) -> ShortTrace:
        """Ends a short trace.

        Raises:
            TraceError: the trace cannot be written.
        """
        self._profiling.close()
        return ShortTrace(self._account_folder, tuple(self._windows), self._layers, self._graph_dtypes)

    @property
    def _loss_scaling(self) -> list[keras.optimizers.LossScaleOptimizer]:
        """The optimizers that scale the loss."""
        return [item for item in optimizers_of(self._model) if isinstance(item, keras.optimizers.LossScaleOptimizer)]

    @cached_property
    def _graph_dtypes(self) -> dict[str, str]:
        """The data types of the training step's operations."""
        return graph_dtypes(self._model.train_function, self._batches)

    @cached_property
    def _layers(self) -> Layers:
        """What the names in the model's graph stand for."""
        optimizers, scaled = optimizers_of(self._model), self._loss_scaling
        return Layers(
            classes={path: type(layer).__name__ for path, layer in with_model(self._model).items()},
            scopes=self._scopes,
            optimizers=tuple(item.name for item in (*optimizers, *(outer.inner_optimizer for outer in scaled))),
            scales_loss=bool(scaled),
        )

    def audit(self) -> ModelAudit:
        """The layers of the model, their types, sizes and work."""
        return audit(self._model, self._task.inputs(1))

    def same_weights(self, trained: Path) -> np.ndarray:
        """What the weights of another variant's training give in this variant's precision, on the test data.

        Args:
            trained: the folder of that training.

        Returns:
            What `train` stores of a test: predictions, which may overflow, or scores.

        Raises:
            DataError: a file of the training is missing.
            CorruptFileError: a file of the training is damaged.
            ProfileError: the weights do not fit this model.
        """
        folder = self._root / trained  # a script's folder is the working folder
        files.verify_manifest(folder)
        path = saved_model(folder)
        task = building.build(self._trial)
        try:
            with warnings.catch_warnings():  # a script's model has an optimizer, whose state may differ
                warnings.simplefilter("ignore")
                task.model.load_weights(path)
        except (ValueError, OSError, KeyError) as error:
            reason = " ".join(str(error).split())[:200]
            raise ProfileError(
                f"{path} does not fit {self._trial.subject} ({reason}): run `dvc repro -f -s {files.stage_of(trained)}`"
            ) from error
        outputs = task.outputs(self._prediction(task.model), allow_not_finite=True)
        return (
            outputs
            if task.keeps_predictions
            else _lowest_where_not_finite(outputs, read_array(folder / SCORES, dimensions=1))
        )

    def settings(self) -> ArmSettings:
        """How this arm runs."""
        unused = precision.unused_gpu()
        warning = None if unused is None else f"{unused}; measured on the CPU"
        return ArmSettings(self._configuration(), self._in_force(), warning)

    def _configuration(self) -> Configuration:
        return Configuration(
            device="GPU" if tf.config.list_logical_devices("GPU") else "CPU",
            input_shape=self._input_shape(),
            parameters=self._model.count_params(),
            optimizer=_optimizer_name(self._model),
            op_determinism=is_op_determinism_enabled(),
            layer_widths=tuple(sorted({width for layer in self._model._flatten_layers() for width in _widths(layer)})),
            data_sha256=self._task.data_sha256,
        )

    def _in_force(self) -> InForce:
        training = self._task.training
        return InForce(
            policy=self._model.dtype_policy.name,
            xla=self._model.jit_compile,
            tf32=tf.config.experimental.tensor_float_32_execution_enabled(),
            onednn=precision.onednn_is_on(),
            batch_size=training.examples_per_step(self._trial.train.batch_size),
            learning_rate=self._task.learning_rate,
            threads=tf.config.threading.get_intra_op_parallelism_threads(),
            threads_between=tf.config.threading.get_inter_op_parallelism_threads(),
            gpu_thread_mode=os.environ.get(GPU_THREAD_MODE),
            env=" ".join(f"{name}={os.environ.get(name)}" for name in sorted(self._trial.variant.env)) or None,
            input_threads=training.threads,
            cache_input=bool(training.first_pass),
            prefetch_to_device=training.device is not None,
            task_path=self._trial.variant.task_path,
            python=self._trial.variant.python and interpreters.shown_versions(fingerprint.versions()),
            float32_layers=self._task.float32.paths,
            float32_casts=self._task.float32.casts,
        )

    def _input_shape(self) -> tuple[int, ...] | None:
        """Shape of one input; None for a task with several."""
        leaves = keras.tree.flatten(self._task.inputs(1))
        return tuple(leaves[0].shape[1:]) if len(leaves) == 1 else None

    def _cached_step(self) -> Callable[[], Any]:
        batch: Any = next(self._batches)
        if tf.config.list_logical_devices("GPU"):
            same = itertools.repeat(keras.tree.map_structure(tf.identity, batch))  # on the device from here on
        else:  # as in a training, so that only the input differs: a step that is called with a tensor is 10 % faster
            same = iter(_endless(batch, self._batches.element_spec))
        return lambda: self._model.train_function(same)

    def _wait_until_idle(self) -> None:
        until_s = time.monotonic() + MAX_FILLING_S
        while time.monotonic() < until_s:
            used_s = time.process_time()
            time.sleep(IDLE_S)
            if time.process_time() - used_s < IDLE_SHARE * IDLE_S:
                return

    def _repeat(self, step: Callable[[], Any], steps: int) -> None:
        for _ in range(steps):
            step()
        tf.test.experimental.sync_devices()

    def _prediction(self, model: keras.Model) -> Callable[[Any], Any]:
        """With XLA if the training step is, as in `predict`."""
        return compiled_prediction(model, self._model.jit_compile)

    def _take_batches(self, count: int) -> None:
        for _ in range(count):
            next(self._batches)

    def _train(self, steps: int, *, mark: bool = False, wait: bool = False) -> None:
        """Runs training steps.

        Args:
            steps: their number.
            mark: whether a trace shows where each begins and ends.
            wait: whether a marked step ends when the device is synchronised.
        """
        self._had_time_to_fill = self._had_time_to_fill and not steps
        self._steps_run += steps
        for step in range(steps):
            if mark:
                with tf.profiler.experimental.Trace("train", step_num=step, _r=1):
                    self._model.train_function(self._batches)
                    if wait:
                        tf.test.experimental.sync_devices()
            else:
                self._model.train_function(self._batches)
        tf.test.experimental.sync_devices()


def compiled_prediction(model: keras.Model, jit_compile: bool | None = None) -> Callable[[Any], Any]:
    """The compiled prediction, as a server would run it."""
    return tf.function(lambda inputs: model(inputs, training=False), jit_compile=jit_compile, reduce_retracing=False)


@contextmanager
def _profiler(folder: Path) -> Iterator[None]:
    """Traces what is run inside.

    TensorFlow reports a full disk as the kind of error that it has for too little memory.
    """
    tf.profiler.experimental.start(str(folder))
    try:
        yield
    finally:
        try:
            tf.profiler.experimental.stop()
        except tf.errors.OpError as error:
            raise TraceError(f"the trace cannot be written ({error.message.rpartition('; ')[-1]})") from error


def _endless(batch: Any, specification: Any) -> Any:
    """A dataset without an end of one batch; of the specification of the pipeline, the training step is not traced."""
    options = tf.data.Options()
    options.autotune.enabled = False
    options.experimental_optimization.inject_prefetch = False  # a thread would take the processor from the steps
    batches = tf.data.Dataset.from_tensors(batch).repeat().with_options(options)
    return tf.data.experimental.from_variant(tf.data.experimental.to_variant(batches), specification)


def _lowest_where_not_finite(scores: np.ndarray, baseline: np.ndarray) -> np.ndarray:
    """Scores of the same weights: an overflow has the lowest score that the baseline or the other examples have."""
    return np.where(np.isfinite(scores), scores, np.nanmin([*baseline, *scores]))


def _optimizer_name(model: keras.Model) -> str:
    """Class of the optimizer, without that of loss scaling, in lower case; of a step of the user's own, all of them."""
    optimizers = optimizers_of(model) if model.optimizer is None else [model.optimizer]
    names = (type(getattr(optimizer, "inner_optimizer", optimizer)).__name__.lower() for optimizer in optimizers)
    return ", ".join(dict.fromkeys(names)) or "none"


def _widths(layer: Any) -> list[int]:
    """Input and output channels of a layer's kernel: tensor cores need multiples of 8."""
    kernel = getattr(layer, "kernel", None)
    return [int(size) for size in kernel.shape[-2:]] if kernel is not None and len(kernel.shape) >= 2 else []
