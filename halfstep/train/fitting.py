"""Keras's `fit`, which can start at any step: it completes the current epoch first, then runs the remaining ones."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from halfstep.tasks.callbacks import redirected
from halfstep.tasks.ready import ReadyTask
from halfstep.train.callbacks import EpochRecorder, StopWhenNotFinite
from halfstep.train.checkpoint_files import Checkpoint
from halfstep.train.resume import CheckpointCallback, build_metrics, restore_state, state_variables


class Callbacks(NamedTuple):
    """The callbacks of a training, in the order in which Keras calls them."""

    recorder: EpochRecorder
    nan_guard: StopWhenNotFinite
    checkpointer: CheckpointCallback


@dataclass(frozen=True)
class Fit:
    """A compiled model with its data, the number of epochs, and the callbacks.

    Attributes:
        callbacks: of halfstep, which come after those of the task.
        folder: where callbacks of the task write files; None leaves those out.
    """

    ready: ReadyTask
    epochs: int
    callbacks: Callbacks
    folder: Path | None

    def resume(self, start: Checkpoint) -> None:
        """Trains from a checkpoint to the last epoch, or until the loss is not finite."""
        epoch = len(start.epochs)
        offset = start.step - epoch * self._steps
        if offset:
            build_metrics(self.ready)
        restore_state(state_variables(self.ready.model), start.arrays)
        if offset:
            self._finish_epoch(epoch, offset)
            epoch += 1
        if epoch < self.epochs and self.callbacks.nan_guard.failure is None:
            self._fit(epoch, self.epochs, offset=0)

    def _finish_epoch(self, epoch: int, offset: int) -> None:
        self.callbacks.nan_guard.set_offset(offset)
        self.callbacks.checkpointer.set_offset(offset)
        if offset < self._steps:
            self._fit(epoch, epoch + 1, offset)
        else:
            self._validate(epoch)

    def _fit(self, epoch: int, epochs: int, offset: int) -> None:
        """Runs the epochs from `epoch` to `epochs`, without the first `offset` steps."""
        first_step, last_step = epoch * self._steps + offset, self.epochs * self._steps
        self.ready.model.fit(
            self.ready.training.batches(first_step, last_step - first_step),
            initial_epoch=epoch,
            epochs=epochs,
            steps_per_epoch=self._steps - offset,
            validation_data=self.ready.validation,
            callbacks=[*redirected(self.ready.task.callbacks, self.folder), *self.callbacks],
            shuffle=False,  # the batches are already shuffled
            verbose=0,
        )

    def _validate(self, epoch: int) -> None:
        """Ends an epoch whose steps are all done, as `fit` does."""
        for callback in self.callbacks:
            callback.set_model(self.ready.model)
            callback.on_epoch_begin(epoch)
        logs = {name: float(value) for name, value in self.ready.model.get_metrics_result().items()}
        metrics = self._evaluate()
        for callback in self.callbacks:
            callback.on_epoch_end(epoch, logs | {f"val_{name}": value for name, value in metrics.items()})

    def _evaluate(self) -> dict[str, float]:
        """Loss and metrics on the validation data; empty without any."""
        if self.ready.validation is None:
            return {}
        callbacks = [self.callbacks.checkpointer]
        return dict(self.ready.model.evaluate(self.ready.validation, callbacks=callbacks, verbose=0, return_dict=True))

    @property
    def _steps(self) -> int:
        return self.ready.training.steps_per_epoch
