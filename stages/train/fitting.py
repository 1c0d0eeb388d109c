"""Keras's `fit`, begun at any step: the rest of an epoch first, then the epochs that are left."""

from __future__ import annotations

from dataclasses import dataclass

import keras
import tensorflow as tf

from stages import dataset
from stages.dataset import Prepared
from stages.params import TrainParams
from stages.train.callbacks import EpochRecorder, StopWhenNotFinite, verbosity
from stages.train.checkpoints import Checkpoint
from stages.train.resuming import Keeper, build_metrics, put_back, variables

TEST_BATCH_SIZE = 256  # fixed, so that results do not depend on the batch size of the training


@dataclass(frozen=True)
class Fit:
    """A network, what it is trained on, and what listens."""

    network: keras.Model
    prepared: Prepared
    settings: TrainParams
    seed: int
    steps: int
    callbacks: tuple[EpochRecorder, StopWhenNotFinite, Keeper]

    def go_on_from(self, start: Checkpoint) -> None:
        """Trains to the end, or until the loss is not finite."""
        epoch = len(start.epochs)
        offset = start.step - epoch * self.steps
        if offset:
            build_metrics(self.network, self._validation())
        put_back(variables(self.network), start.arrays)
        if offset:
            self._finish_epoch(epoch, offset)
            epoch += 1
        _, guard, _ = self.callbacks
        if epoch < self.settings.epochs and guard.failure is None:
            self._fit(epoch, self.settings.epochs, offset=0)

    def _finish_epoch(self, epoch: int, offset: int) -> None:
        _, guard, keeper = self.callbacks
        guard.begin_at(offset)
        keeper.begin_at(offset)
        if offset < self.steps:
            self._fit(epoch, epoch + 1, offset)
        else:
            self._validate(epoch)

    def _fit(self, epoch: int, epochs: int, offset: int) -> None:
        """Epochs from `epoch` up to `epochs`, of which `offset` steps are done."""
        self.network.fit(
            dataset.training_batches(self.prepared.train, self.settings, self.seed, epoch * self.steps + offset),
            initial_epoch=epoch,
            epochs=epochs,
            steps_per_epoch=self.steps - offset,
            validation_data=self._validation(),
            callbacks=list(self.callbacks),
            shuffle=False,  # the batches are shuffled already
            verbose=verbosity(),
        )

    def _validate(self, epoch: int) -> None:
        """Ends an epoch whose steps are all done, as `fit` does."""
        *_, keeper = self.callbacks
        for callback in self.callbacks:
            callback.set_model(self.network)
            callback.on_epoch_begin(epoch)
        logs = {name: float(value) for name, value in self.network.get_metrics_result().items()}
        found = self.network.evaluate(self._validation(), callbacks=[keeper], verbose=0, return_dict=True)
        for callback in self.callbacks:
            callback.on_epoch_end(epoch, logs | {f"val_{name}": value for name, value in found.items()})

    def _validation(self) -> tf.data.Dataset:
        return dataset.ordered_batches(self.prepared.validation, TEST_BATCH_SIZE, self.settings.input_threads)
