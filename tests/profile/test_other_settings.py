"""Arms with another batch, other threads or another input pipeline, in real worker processes."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from halfstep.errors import ProfileError
from halfstep.params.schema import ModelParams, ProfileParams, TaskParams, TrainParams, Variant
from halfstep.profile.differences import check_configurations
from halfstep.profile.records import ArmRecord, ArmSettings, Measurement
from halfstep.profile.repeats import Repeats, amounts
from halfstep.profile.runner import MeasurementContext, measure
from halfstep.system import files
from halfstep.tasks.trial import Trial
from tests.profile.arm_records import arm_record

PROTOCOL = ProfileParams(
    processes=2,
    rounds=2,
    warmup_steps=1,
    trace_steps=2,
    inference_batch_sizes=(4,),
    inference_calls_per_round=2,
    seed=1,
)
TRAIN = TrainParams(batch_size=8)
ENTRIES = {
    "float32": Variant(policy="float32"),
    "float32_batch_32": Variant(policy="float32", batch_size=32, parent="float32"),
    "mixed_bfloat16": Variant(policy="mixed_bfloat16", threads=1),
}
BRIDGE = "_bridge_threads_1"


@pytest.fixture(scope="module")
def measurement(folder: Path) -> Measurement:
    configs = {
        name: Trial(TaskParams(), ModelParams(), entry.applied_to(TRAIN), entry, seed=0)
        for name, entry in ENTRIES.items()
    }
    kept = Repeats(Path(tempfile.mkdtemp(dir=folder)), amounts(PROTOCOL, 1.05))
    context = MeasurementContext(min_speedup=0.01)  # so that the bridging arm is needed
    return measure({**configs, files.CONTROL: configs["float32"]}, "float32", PROTOCOL, context, kept)


@pytest.mark.slow
def test_settings_in_force_are_those_of_each_entry(measurement: Measurement) -> None:
    settings = {name: record.settings.in_force for name, record in measurement.records.items()}
    assert settings["float32_batch_32"].batch_size == 32
    assert settings["float32_batch_32"].learning_rate == pytest.approx(4 * TRAIN.learning_rate)
    assert (
        settings["float32"].batch_size
        == settings[files.CONTROL].batch_size
        == settings["mixed_bfloat16"].batch_size
        == 8
    )
    assert (settings["mixed_bfloat16"].threads, settings["float32"].threads) == (1, 0)
    assert (settings[BRIDGE].threads, settings[BRIDGE].policy) == (1, "float32")


@pytest.mark.slow
def test_inference_is_not_measured_of_what_differs_in_training_alone(measurement: Measurement) -> None:
    calls = {name: bool(record.times.calls) for name, record in measurement.records.items()}
    assert calls["float32"]
    assert calls["mixed_bfloat16"]
    assert not calls["float32_batch_32"]


@pytest.mark.slow
def test_accounts_are_of_arms_whose_steps_have_as_many_examples(measurement: Measurement) -> None:
    accounts = {name: bool(record.times.account) for name, record in measurement.records.items()}
    expected = {"float32": True, "mixed_bfloat16": True, files.CONTROL: True, "float32_batch_32": False, BRIDGE: False}
    assert accounts == expected


def with_batch(record: ArmRecord, batch_size: int, entry: Variant) -> ArmRecord:
    in_force = record.settings.in_force.model_copy(update={"batch_size": batch_size})
    return replace(record, entry=entry, settings=ArmSettings(record.settings.configuration, in_force))


def test_batch_that_no_entry_sets_is_refused() -> None:
    before, entry = arm_record(), Variant(policy="float32")
    with pytest.raises(ProfileError, match=r"'other' does not run like 'float32' \(batch_size 64 instead of 32\)"):
        check_configurations("float32", {"float32": before, "other": with_batch(arm_record(), 64, entry)})
    changed = entry.model_copy(update={"batch_size": 64})
    check_configurations("float32", {"float32": before, "other": with_batch(arm_record(), 64, changed)})
    check_configurations("float32", {"float32": with_batch(arm_record(), 64, changed), "other": before})
