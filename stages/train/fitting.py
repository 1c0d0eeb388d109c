"""Keras's `fit`, which can start at any step: it completes the current epoch first, then runs the remaining ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from stages import dataset
from stages.dataset import PreparedImages
from stages.params import TrainParams
from stages.tensorflow_import import keras, tf
from stages.train.callbacks import EpochRecorder, StopWhenNotFinite, verbosity
from stages.train.checkpoints import Checkpoint
from stages.train.resume import CheckpointCallback, build_metrics, restore_state, state_variables

TEST_BATCH_SIZE = 256  # fixed, so that results do not depend on `train.batch_size`


class Callbacks(NamedTuple):
    """The callbacks of a training, in the order in which Keras calls them."""

    recorder: EpochRecorder
    nan_guard: StopWhenNotFinite
    checkpointer: CheckpointCallback


@dataclass(frozen=True)
class Fit:
    """A compiled network, its data (`steps` per epoch), and the callbacks."""

    network: keras.Model
    prepared: PreparedImages
    settings: TrainParams
    seed: int
    steps: int
    callbacks: Callbacks

    def resume(self, start: Checkpoint) -> None:
        """Trains from a checkpoint to the last epoch, or until the loss is not finite."""
        epoch = len(start.epochs)
        offset = start.step - epoch * self.steps
        if offset:
            build_metrics(self.network, self._validation())
        restore_state(state_variables(self.network), start.arrays)
        if offset:
            self._finish_epoch(epoch, offset)
            epoch += 1
        if epoch < self.settings.epochs and self.callbacks.nan_guard.failure is None:
            self._fit(epoch, self.settings.epochs, offset=0)

    def _finish_epoch(self, epoch: int, offset: int) -> None:
        self.callbacks.nan_guard.set_offset(offset)
        self.callbacks.checkpointer.set_offset(offset)
        if offset < self.steps:
            self._fit(epoch, epoch + 1, offset)
        else:
            self._validate(epoch)

    def _fit(self, epoch: int, epochs: int, offset: int) -> None:
        """Runs the epochs from `epoch` to `epochs`, without the first `offset` steps."""
        self.network.fit(
            dataset.training_batches(self.prepared.train, self.settings, self.seed, epoch * self.steps + offset),
            initial_epoch=epoch,
            epochs=epochs,
            steps_per_epoch=self.steps - offset,
            validation_data=self._validation(),
            callbacks=list(self.callbacks),
            shuffle=False,  # the batches are already shuffled
            verbose=verbosity(),
        )

    def _validate(self, epoch: int) -> None:
        """Ends an epoch whose steps are all done, as `fit` does."""
        for callback in self.callbacks:
            callback.set_model(self.network)
            callback.on_epoch_begin(epoch)
        logs = {name: float(value) for name, value in self.network.get_metrics_result().items()}
        checkpointer = self.callbacks.checkpointer
        found = self.network.evaluate(self._validation(), callbacks=[checkpointer], verbose=0, return_dict=True)
        for callback in self.callbacks:
            callback.on_epoch_end(epoch, logs | {f"val_{name}": value for name, value in found.items()})

    def _validation(self) -> tf.data.Dataset:
        return dataset.ordered_batches(self.prepared.validation, TEST_BATCH_SIZE, self.settings.input_threads)
