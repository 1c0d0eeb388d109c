from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from halfstep.errors import PrecisionError
from halfstep.params.schema import ModelParams, TaskParams, TrainParams, Variant
from halfstep.results.prepared import PREPARED_INFO, PreparedInfo
from halfstep.tasks import building, precision
from halfstep.tasks.trial import Trial


@pytest.fixture(autouse=True)
def described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working folder with the description of prepared images, without the images."""
    monkeypatch.chdir(tmp_path)
    PreparedInfo(
        source="synthetic",
        synthetic=True,
        classes=("a", "b", "c"),
        image_shape=(8, 8, 3),
        images={},
        class_counts={},
        rejected=0,
    ).write(PREPARED_INFO)


def compiled(named: ModelParams, train: TrainParams, policy: str, seed: int) -> keras.Model:
    variant = Variant(policy=policy)
    return building.ready(Trial(TaskParams(), named, train, variant, seed), trial_batch=train.batch_size).model


def model(policy: str = "float32", seed: int = 0, **train: Any) -> keras.Model:
    """A network with one step an epoch."""
    return compiled(ModelParams(), TrainParams(**{"epochs": 40, "learning_rate": 0.5, **train}), policy, seed)


def rates(**train: Any) -> list[float]:
    """Learning rate at every step, and at the one after the last."""
    schedule = model(**train).optimizer._learning_rate
    return [float(schedule(step)) for step in range(41)]


def test_cosine_has_a_linear_warm_up_and_decays_to_zero() -> None:
    learning_rates = rates(warmup_epochs=10.0)
    assert learning_rates[0] == pytest.approx(0.05)
    np.testing.assert_allclose(np.diff(learning_rates[:10], 2), 0, atol=1e-6)
    assert max(learning_rates) == learning_rates[10] == pytest.approx(0.5)
    assert learning_rates[25] == pytest.approx(0.25)  # halfway
    assert learning_rates[40] == pytest.approx(0, abs=1e-7)


def test_cosine_without_warm_up_starts_at_the_highest_rate() -> None:
    learning_rates = rates(warmup_epochs=0.0)
    assert learning_rates[0] == max(learning_rates) == pytest.approx(0.5)
    assert learning_rates[20] == pytest.approx(0.25)
    assert learning_rates[40] == pytest.approx(0, abs=1e-7)


def test_constant_schedule_does_not_decay() -> None:
    assert rates(schedule="constant", warmup_epochs=0.0) == pytest.approx([0.5] * 41)
    learning_rates = rates(schedule="constant", warmup_epochs=5.0)
    assert learning_rates[0] == pytest.approx(0.1)
    assert learning_rates[5:] == pytest.approx([0.5] * 36)


def test_warm_up_over_the_whole_training_reaches_the_highest_rate() -> None:
    learning_rates = rates(warmup_epochs=40.0)
    assert learning_rates[39] < learning_rates[40] == pytest.approx(0.5)
    assert np.isfinite(learning_rates).all()


def test_without_a_training_the_steps_are_those_at_the_beginning_of_one() -> None:
    assert rates(epochs=0, warmup_epochs=10.0)[:10] == rates(epochs=40, warmup_epochs=10.0)[:10]
    assert rates(epochs=0, warmup_epochs=24.5)[:24] == rates(epochs=40, warmup_epochs=24.5)[:24]
    assert rates(epochs=0, warmup_epochs=0.0) == rates(epochs=1, warmup_epochs=0.0)
    assert rates(epochs=0, warmup_epochs=0.0, schedule="constant") == pytest.approx([0.5] * 41)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("adam", keras.optimizers.Adam), ("adamw", keras.optimizers.AdamW), ("sgd", keras.optimizers.SGD)],
)
def test_optimizer_is_the_named_one(name: str, kind: Any) -> None:
    plain, scaled = model(optimizer=name).optimizer, model("mixed_float16", optimizer=name).optimizer
    assert type(plain) is kind
    assert type(scaled.inner_optimizer) is kind
    if name == "sgd":
        assert (plain.momentum, plain.nesterov) == (0.9, True)


def test_initial_weights_are_the_same_in_every_precision() -> None:
    weights = {policy: model(policy).get_weights() for policy in ("float32", "mixed_float16", "mixed_bfloat16")}
    for arrays in weights.values():
        assert all(array.dtype == np.float32 for array in arrays)
        for array, expected in zip(arrays, weights["float32"], strict=True):
            np.testing.assert_array_equal(array, expected)
    other = model(seed=1).get_weights()
    assert not all(np.array_equal(a, b) for a, b in zip(other, weights["float32"], strict=True))


def test_only_mixed_float16_has_a_loss_scale() -> None:
    assert precision.loss_scale(model("mixed_float16")) == 2.0**15
    assert precision.loss_scale(model("float32")) is None
    assert precision.loss_scale(model("mixed_bfloat16")) is None


def test_saved_schedule_is_a_class_of_keras(tmp_path: Any) -> None:
    """A saved model must load without this project's code."""
    built = model(schedule="constant")
    built.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert type(loaded.optimizer._learning_rate).__module__.startswith("keras")


@pytest.mark.parametrize(
    ("options", "then", "fragment"),
    [
        ("dtype='float32', ", "", r"layers do not compute in bfloat16: hidden \(float32\)"),
        ("", "model.quantize('int8', filters='hidden')", r"layers are quantized: hidden \(int8_from_mixed_bfloat16\)"),
    ],
)
def test_model_that_does_not_use_the_variants_precision_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: str, then: str, fragment: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    name = f"user_model_{tmp_path.name}"
    Path(f"{name}.py").write_text(
        "import keras\n\n\ndef build(shape, classes):\n"
        "    x = keras.Input(shape, dtype='uint8')\n"
        "    y = keras.layers.Flatten()(keras.layers.Rescaling(1 / 255)(x))\n"
        f"    y = keras.layers.Dense(8, {options}name='hidden')(y)\n"
        "    model = keras.Model(x, keras.layers.Dense(classes, activation='softmax', dtype='float32')(y))\n"
        f"    {then}\n"
        "    return model\n"
    )
    with pytest.raises(PrecisionError, match=fragment):
        compiled(ModelParams(name=f"{name}:build"), TrainParams(), "mixed_bfloat16", seed=0)
