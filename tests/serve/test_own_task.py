"""Tasks of the user's own are exported as images are: several inputs, and without a test."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from halfstep.params.schema import ModelParams, TaskParams, TrainParams, Variant
from halfstep.results.serving import outputs_file
from halfstep.serve.exporting import export
from halfstep.serve.records import INPUTS, Request
from halfstep.system import files
from halfstep.tasks.trial import Trial
from tests.profile.test_own_task import TWO_INPUTS
from tests.tasks.conftest import Own, prepare_task, with_weights
from tests.tasks.conftest import own as own

TRAIN = TrainParams(batch_size=8, epochs=1)
FLOAT32 = Variant(policy="float32")
REQUEST = Request(
    trained=None,
    folder=Path(),
    formats=("saved_model", "litert"),
    examples=2,
)


def trial(task: TaskParams, settings: TrainParams = TRAIN) -> Trial:
    return Trial(task, ModelParams(), settings, FLOAT32, 0, directory=files.PREPARED.absolute(), name="float32")


@pytest.mark.slow
def test_subclassed_model_with_two_inputs_and_named_outputs_is_exported(own: Own, tmp_path: Path) -> None:
    task = own(TWO_INPUTS)
    prepare_task(task, TRAIN, files.PREPARED)
    trained = tmp_path / "trained"
    result = with_weights(trial(task), trained)
    assert result.outputs is not None
    exported = export(trial(task), replace(REQUEST, trained=trained, folder=tmp_path))
    assert [item.refusal for item in exported.exports] == [None, None]
    with np.load(tmp_path / INPUTS) as stored:
        assert [stored[name].shape for name in stored.files] == [(2, 4), (2, 4)]
    for item in exported.exports:
        assert item.difference is not None
        assert item.difference < 1e-5
        scores = np.load(tmp_path / outputs_file(0, item.format))
        np.testing.assert_allclose(scores, result.outputs, atol=1e-5)


def test_without_a_training_the_speed_alone_is_of_interest_and_nothing_is_tested(own: Own, tmp_path: Path) -> None:
    task = own(
        "def build(*, batch_size, seed):\n    return changed(test=None, score=None, score_name=None, validation=None)\n"
    )
    nothing = TRAIN.model_copy(update={"epochs": 0})
    prepare_task(task, nothing, files.PREPARED)
    exported = export(trial(task, nothing), replace(REQUEST, folder=tmp_path))
    assert [item.refusal for item in exported.exports] == [None, None]
    assert all(item.difference is not None and item.difference < 1e-5 for item in exported.exports)
    assert not (tmp_path / "outputs").exists()
