from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from halfstep.params.schema import Augment, ModelParams, TaskParams, TrainParams, Variant
from halfstep.tasks.images import arrays, dataset
from halfstep.tasks.trial import Trial
from halfstep.train.checkpoint_files import Checkpoint
from halfstep.train.epochs import Epoch
from halfstep.train.interruption import Interruption
from halfstep.train.resume import Session, capture_state, state_variables
from halfstep.train.training import TrainedTask, train

AUGMENT = Augment(flip=True, rotate_degrees=20.0, shift_fraction=0.1)
SETTINGS = TrainParams(epochs=3, batch_size=8, augment=AUGMENT)  # the network has dropout
STEPS = 4
VALIDATION_BATCHES = 1


class InterruptionAfter(Interruption):
    """Requests the end after `checks` reads of `requested`."""

    def __init__(self, checks: int) -> None:
        super().__init__()
        self._remaining = checks

    @property
    def requested(self) -> bool:
        self._remaining -= 1
        return self._remaining < 0


@pytest.fixture(scope="module")
def prepared(prepared_template: Path) -> Path:
    assert dataset.steps_per_epoch(arrays.open_prepared(prepared_template).train, SETTINGS.batch_size) == STEPS
    return prepared_template


def trained(prepared: Path, policy: str, session: Session, settings: TrainParams = SETTINGS) -> TrainedTask:
    trial = Trial(TaskParams(), ModelParams(), settings, Variant(policy=policy), 3, directory=prepared)
    return train(trial, session=session)


def interrupted(prepared: Path, policy: str, start: Checkpoint, checks: int) -> Checkpoint:
    """The last checkpoint of an interrupted session, after serialization."""
    kept: list[Checkpoint] = []
    with pytest.raises(SystemExit) as caught:
        trained(prepared, policy, Session(start, kept.append, InterruptionAfter(checks)))
    assert caught.value.code == 143
    return Checkpoint.from_bytes(kept[-1].to_bytes())


def without_times(epochs: tuple[Epoch, ...]) -> list[dict[str, Any]]:
    return [vars(replace(row, epoch_time_s=0.0)) for row in epochs]


@pytest.mark.slow
def test_training_in_four_sessions_equals_one_session_bit_for_bit(prepared: Path) -> None:
    """With loss scaling, whose state is part of a checkpoint, too."""
    policy = "mixed_float16"
    kept: list[Checkpoint] = []
    uninterrupted = trained(prepared, policy, Session(save=kept.append))
    assert [(checkpoint.step, len(checkpoint.epochs)) for checkpoint in kept] == [(4, 1), (8, 2), (12, 3)]

    first = Checkpoint.from_bytes(kept[0].to_bytes())
    middle = interrupted(prepared, policy, first, checks=2)
    assert (middle.step, len(middle.epochs)) == (STEPS + 2, 1)
    validating = interrupted(prepared, policy, middle, checks=STEPS - 2)
    assert (validating.step, len(validating.epochs)) == (2 * STEPS, 1)
    assert first.train_time_s < middle.train_time_s < validating.train_time_s
    assert 0 < middle.epoch_time_s < validating.epoch_time_s
    resumed = trained(prepared, policy, Session(validating))

    assert without_times(resumed.epochs) == without_times(uninterrupted.epochs)
    assert resumed.train_time_s > validating.train_time_s
    assert resumed.epochs[1].epoch_time_s > validating.epoch_time_s
    assert sum(row.epoch_time_s for row in resumed.epochs) < resumed.train_time_s
    np.testing.assert_array_equal(resumed.outputs, uninterrupted.outputs)
    expected, actual = (capture_state(state_variables(each.model)) for each in (uninterrupted, resumed))
    for name in expected:
        if not name.startswith("metrics/"):
            np.testing.assert_array_equal(actual[name], expected[name], err_msg=name)
    assert resumed.loss_scale == uninterrupted.loss_scale


def test_interruption_at_the_end_of_an_epoch_saves_the_epoch(prepared: Path) -> None:
    settings = SETTINGS.model_copy(update={"checkpoint_every": 3})
    kept: list[Checkpoint] = []
    interruption = InterruptionAfter(STEPS + VALIDATION_BATCHES)
    with pytest.raises(SystemExit):
        trained(prepared, "float32", Session(save=kept.append, interruption=interruption), settings)
    assert [(checkpoint.step, len(checkpoint.epochs), checkpoint.epoch_time_s) for checkpoint in kept] == [(4, 1, 0.0)]


def test_completed_training_is_only_tested_again(prepared: Path) -> None:
    kept: list[Checkpoint] = []
    settings = SETTINGS.model_copy(update={"epochs": 2, "checkpoint_every": 5})
    uninterrupted = trained(prepared, "float32", Session(save=kept.append), settings)
    assert [len(checkpoint.epochs) for checkpoint in kept] == [2]  # the last, whatever `checkpoint_every` says
    again = trained(prepared, "float32", Session(kept[0]), settings)
    np.testing.assert_array_equal(again.outputs, uninterrupted.outputs)
    assert again.epochs == uninterrupted.epochs


def test_16_bit_variables_are_restored_exactly(prepared: Path) -> None:
    kept: list[Checkpoint] = []
    settings = SETTINGS.model_copy(update={"epochs": 1})
    uninterrupted = trained(prepared, "bfloat16", Session(save=kept.append), settings)
    again = trained(prepared, "bfloat16", Session(Checkpoint.from_bytes(kept[0].to_bytes())), settings)
    np.testing.assert_array_equal(again.outputs, uninterrupted.outputs)
