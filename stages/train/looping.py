"""The training loop of several replicas, in place of Keras's `fit`.

`fit` fails where a strategy spans several hosts: it builds the model from the value of one replica, and reduces scalars
along an axis. It also fails where a batch of the validation data splits unevenly. One loop for one host and for several
runs the same steps on the same shares of the data, so that their results are the same. It calls the callbacks as `fit`
does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from stages.distribution.replicas import Replicas
from stages.tensorflow_import import keras
from stages.train.checkpoints import Checkpoint
from stages.train.fitting import Fit
from stages.train.interruption import Interruption, SharedInterruption

_LAG = 2  # steps after which the hosts learn of a request to end: for that of the last step they would wait


@dataclass(frozen=True)
class ReplicaFit(Fit):
    """A compiled model with replicas, its data, the number of epochs, the callbacks, and the request to end early.

    Attributes:
        verbose: as of `fit`.
    """

    interruption: Interruption
    verbose: int
    _pending: deque[Any] = field(default_factory=deque)

    def resume(self, start: Checkpoint) -> None:
        """Trains from a checkpoint to the last epoch, or until the loss is not finite. All hosts must call it."""
        with self._replicas.strategy.scope():
            super().resume(start)

    def _fit(self, epoch: int, epochs: int, offset: int) -> None:
        model, steps = self.ready.model, self._steps
        callbacks = keras.callbacks.CallbackList(
            list(self.callbacks),
            add_progbar=bool(self.verbose),
            verbose=self.verbose,
            epochs=epochs,
            steps=steps - offset,
            model=model,
        )
        model.stop_training = False
        batches = iter(self.ready.training.from_step(epoch * steps + offset, None))
        callbacks.on_train_begin()
        for number in range(epoch, epochs):
            self._run_epoch(number, steps - offset, batches, callbacks)
            if model.stop_training:
                break
        callbacks.on_train_end()

    def _run_epoch(self, epoch: int, steps: int, batches: Iterator[Any], callbacks: Any) -> None:
        model = self.ready.model
        model.reset_metrics()
        callbacks.on_epoch_begin(epoch)
        for step in range(steps):
            callbacks.on_train_batch_begin(step)
            logs = self._step(batches)
            callbacks.on_train_batch_end(step, logs)
        logs = _numbers(model.get_metrics_result())
        self._replicas.average_statistics()
        found = self._evaluate()
        callbacks.on_epoch_end(epoch, logs | {f"val_{name}": value for name, value in found.items()})

    def _step(self, batches: Iterator[Any]) -> dict[str, Any]:
        """A training step on all replicas; on several hosts, also learns whether any of them asks for the end."""
        if not isinstance(self.interruption, SharedInterruption):
            return self.ready.model.train_function(batches)
        if self.interruption.received:
            self._replicas.request_stop()
        logs = self.ready.model.train_function(batches)
        self._pending.append(self._replicas.last_stops)
        if len(self._pending) > _LAG and float(self._pending.popleft()) > 0:
            self.interruption.agreed = True
        return logs

    def _evaluate(self) -> dict[str, float]:
        """Loss and metrics of the whole validation data: each replica adds those of its share to its own sums."""
        model, checkpointer = self.ready.model, self.callbacks.checkpointer
        batches = iter(self.ready.validation_shares)
        checkpointer.on_test_begin()
        model.reset_metrics()
        for step in range(self.ready.validation_steps):
            checkpointer.on_test_batch_begin(step)
            model.test_function(batches)
        return _numbers(model.get_metrics_result())

    @property
    def _replicas(self) -> Replicas:
        assert self.ready.replicas is not None, "several replicas"
        return self.ready.replicas


def _numbers(values: Any) -> dict[str, float]:
    return {name: float(value) for name, value in values.items()}
