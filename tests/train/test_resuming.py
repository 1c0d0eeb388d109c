from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stages import dataset
from stages.dataset import Prepared
from stages.params import Augment, ModelParams, TrainParams, Variant
from stages.train.callbacks import Epoch
from stages.train.checkpoints import Checkpoint
from stages.train.resuming import Sitting, taken, variables
from stages.train.stopping import Stop
from stages.train.training import Trained, train

POLICIES = ("float32", "mixed_float16", "mixed_bfloat16")
AUGMENT = Augment(flip=True, rotate_degrees=20.0, shift_fraction=0.1)
SETTINGS = TrainParams(epochs=3, batch_size=8, augment=AUGMENT)  # the network has dropout
STEPS = 4
VALIDATION_BATCHES = 1


class StopAfter(Stop):
    """Asks for the end at the n-th time that it is asked."""

    def __init__(self, asked: int) -> None:
        super().__init__()
        self._left = asked

    @property
    def requested(self) -> bool:
        self._left -= 1
        return self._left < 0


@pytest.fixture(scope="module")
def prepared(prepared_template: Path) -> Prepared:
    opened = dataset.open_prepared(prepared_template)
    assert dataset.steps_per_epoch(opened.train, SETTINGS.batch_size) == STEPS
    return opened


def trained(prepared: Prepared, policy: str, sitting: Sitting, settings: TrainParams = SETTINGS) -> Trained:
    return train(prepared, ModelParams(), settings, Variant(policy=policy), 3, sitting=sitting)  # type: ignore[arg-type]


def interrupted(prepared: Prepared, policy: str, start: Checkpoint, asked: int) -> Checkpoint:
    """The checkpoint that an interrupted sitting leaves, after its way through a file."""
    kept: list[Checkpoint] = []
    with pytest.raises(SystemExit) as caught:
        trained(prepared, policy, Sitting(start, kept.append, StopAfter(asked)))
    assert caught.value.code == 143
    return Checkpoint.from_bytes(kept[-1].to_bytes())


def without_times(epochs: tuple[Epoch, ...]) -> list[dict[str, Any]]:
    return [vars(replace(row, epoch_time_s=0.0)) for row in epochs]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_training_in_four_sittings_ends_bit_for_bit_as_one_in_one(prepared: Prepared, policy: str) -> None:
    kept: list[Checkpoint] = []
    undisturbed = trained(prepared, policy, Sitting(save=kept.append))
    assert [(checkpoint.step, len(checkpoint.epochs)) for checkpoint in kept] == [(4, 1), (8, 2), (12, 3)]

    first = Checkpoint.from_bytes(kept[0].to_bytes())
    middle = interrupted(prepared, policy, first, asked=2)
    assert (middle.step, len(middle.epochs)) == (STEPS + 2, 1)
    validating = interrupted(prepared, policy, middle, asked=STEPS - 2)
    assert (validating.step, len(validating.epochs)) == (2 * STEPS, 1)
    assert first.train_time_s < middle.train_time_s < validating.train_time_s
    assert 0 < middle.epoch_time_s < validating.epoch_time_s
    resumed = trained(prepared, policy, Sitting(validating))

    assert without_times(resumed.epochs) == without_times(undisturbed.epochs)
    assert resumed.train_time_s > validating.train_time_s
    assert resumed.epochs[1].epoch_time_s > validating.epoch_time_s
    assert sum(row.epoch_time_s for row in resumed.epochs) < resumed.train_time_s
    np.testing.assert_array_equal(resumed.probabilities, undisturbed.probabilities)
    expected, found = taken(variables(undisturbed.model)), taken(variables(resumed.model))
    for name in expected:
        if not name.startswith("metrics/"):
            np.testing.assert_array_equal(found[name], expected[name], err_msg=name)
    assert (resumed.images, resumed.loss_scale) == (undisturbed.images, undisturbed.loss_scale)


def test_a_stop_at_the_end_of_an_epoch_loses_nothing(prepared: Prepared) -> None:
    settings = SETTINGS.model_copy(update={"checkpoint_every": 3})
    kept: list[Checkpoint] = []
    stop = StopAfter(STEPS + VALIDATION_BATCHES)
    with pytest.raises(SystemExit):
        trained(prepared, "float32", Sitting(save=kept.append, stop=stop), settings)
    assert [(checkpoint.step, len(checkpoint.epochs), checkpoint.epoch_time_s) for checkpoint in kept] == [(4, 1, 0.0)]


def test_a_training_that_had_ended_is_only_tested_again(prepared: Prepared) -> None:
    kept: list[Checkpoint] = []
    settings = SETTINGS.model_copy(update={"epochs": 2, "checkpoint_every": 5})
    undisturbed = trained(prepared, "float32", Sitting(save=kept.append), settings)
    assert [len(checkpoint.epochs) for checkpoint in kept] == [2]  # the last, whatever `checkpoint_every` says
    again = trained(prepared, "float32", Sitting(kept[0]), settings)
    np.testing.assert_array_equal(again.probabilities, undisturbed.probabilities)
    assert again.epochs == undisturbed.epochs


def test_16_bit_variables_come_back_exactly(prepared: Prepared) -> None:
    kept: list[Checkpoint] = []
    settings = SETTINGS.model_copy(update={"epochs": 1})
    undisturbed = trained(prepared, "bfloat16", Sitting(save=kept.append), settings)
    again = trained(prepared, "bfloat16", Sitting(Checkpoint.from_bytes(kept[0].to_bytes())), settings)
    np.testing.assert_array_equal(again.probabilities, undisturbed.probabilities)
