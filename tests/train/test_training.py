from __future__ import annotations

import itertools
import math
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

from halfstep.errors import ModelError
from halfstep.params.schema import Augment, DataParams, ModelParams, TaskParams, TrainParams, Variant
from halfstep.results.training import write_training
from halfstep.system import files
from halfstep.tasks.images import arrays
from halfstep.tasks.images.arrays import PreparedImages
from halfstep.tasks.trial import Trial
from halfstep.train.callbacks import StopWhenNotFinite
from halfstep.train.epochs import Epoch
from halfstep.train.result import TrainingFailure
from halfstep.train.training import TrainedTask, _explain_out_of_memory, train

POLICIES = ("float32", "mixed_float16", "mixed_bfloat16")
SETTINGS = TrainParams(epochs=2, batch_size=8)
COLUMNS = ["epoch", "loss", "accuracy", "val_loss", "val_accuracy", "learning_rate", "epoch_time_s"]
KEYS = {
    *("schema_version", "status", "test_accuracy", "test_loss", "train_time_s", "train_images_per_s", "batch_size"),
    *("data_sha256", "environment", "initial_weights", "permuted_score", "permuted_p"),
}
LOSS_SCALE_COLUMNS = ["loss_scale", "skipped_steps"]


@pytest.fixture(scope="module")
def prepared(prepared_template: Path) -> Path:
    return prepared_template


@pytest.fixture(scope="module")
def images(prepared: Path) -> PreparedImages:
    return arrays.open_prepared(prepared)


def trained(prepared: Path, policy: str = "float32", model: str = "cnn", seed: int = 3, **options: Any) -> TrainedTask:
    settings = options.pop("settings", SETTINGS)
    variant = Variant(policy=policy)
    trial = Trial(TaskParams(), ModelParams(name=model), settings, variant, seed, directory=prepared)
    return train(trial, **options)


@pytest.fixture(scope="module")
def trainings(prepared: Path) -> dict[str, TrainedTask]:
    return {policy: trained(prepared, policy) for policy in POLICIES}


def write(result: TrainedTask, directory: Path) -> str:
    history = [{"epoch": row.epoch, **row.metrics()} for row in result.epochs]
    return write_training(directory, result.metrics(), history, result.model.save, result.outputs)


def test_all_variants_with_float32_variables_begin_with_the_same_weights(trainings: dict[str, TrainedTask]) -> None:
    mixed = [name for name in POLICIES if name == "float32" or name.startswith("mixed_")]
    assert len({trainings[name].metrics().initial_weights for name in mixed}) == 1
    assert len(str(trainings["float32"].metrics().initial_weights).split()) == 8


@pytest.mark.parametrize("policy", POLICIES)
def test_result_files_have_the_documented_content(
    trainings: dict[str, TrainedTask], images: PreparedImages, policy: str, tmp_path: Path
) -> None:
    labels = images.test.labels
    digest = write(trainings[policy], tmp_path)
    names = {"metrics.json", "history.csv", "model.keras", "predictions.npy", "manifest.json"}
    assert {path.name for path in tmp_path.iterdir()} == names
    assert files.verify_manifest(tmp_path) == digest

    metrics = files.read_json(tmp_path / "metrics.json")
    assert set(metrics) == KEYS | ({"loss_scale", "skipped_share"} if policy == "mixed_float16" else set())
    assert metrics["status"] == "finished"
    history = pd.read_csv(tmp_path / "history.csv")
    assert list(history.columns) == COLUMNS + (LOSS_SCALE_COLUMNS if policy == "mixed_float16" else [])
    assert history["epoch"].tolist() == [0, 1]
    assert (metrics["batch_size"], metrics["data_sha256"]) == (8, images.sha256)
    assert f"tensorflow {version('tensorflow')}" in metrics["environment"]
    assert (history["epoch_time_s"] > 0).all()
    assert history["epoch_time_s"].sum() <= metrics["train_time_s"]
    steps = len(images.train) // 8
    assert metrics["train_images_per_s"] == pytest.approx(2 * 8 * steps / metrics["train_time_s"])

    predictions = np.load(tmp_path / "predictions.npy", allow_pickle=False)
    assert (predictions.shape, predictions.dtype) == ((len(labels), 4), np.float32)
    assert metrics["test_accuracy"] == pytest.approx((predictions.argmax(axis=1) == labels).mean())
    expected_loss = keras.losses.sparse_categorical_crossentropy(labels, predictions)
    assert metrics["test_loss"] == pytest.approx(float(np.mean(expected_loss)), rel=1e-4)

    model = keras.saving.load_model(tmp_path / "model.keras")
    again = model.predict(np.asarray(images.test.images), verbose=0)
    np.testing.assert_allclose(again, predictions, atol=2e-2 if policy == "mixed_bfloat16" else 2e-3)


@pytest.mark.parametrize("policy", POLICIES)
def test_same_seed_gives_the_same_result_bit_for_bit(
    trainings: dict[str, TrainedTask], prepared: Path, policy: str
) -> None:
    again = trained(prepared, policy)
    assert again.outputs is not None
    np.testing.assert_array_equal(again.outputs, trainings[policy].outputs)
    assert [row.logs["loss"] for row in again.epochs] == [row.logs["loss"] for row in trainings[policy].epochs]


def test_another_seed_gives_another_result(trainings: dict[str, TrainedTask], prepared: Path) -> None:
    other = trained(prepared, seed=4)
    assert not np.array_equal(other.outputs, trainings["float32"].outputs)  # type: ignore[arg-type]


def test_listeners_receive_every_epoch(prepared: Path) -> None:
    rows: list[Epoch] = []
    result = trained(prepared, "mixed_float16", listeners=(rows.append,))
    assert tuple(rows) == result.epochs
    assert [row.epoch for row in rows] == [0, 1]
    assert (rows[0].metrics()["loss_scale"], rows[0].metrics()["skipped_steps"]) == (2.0**15, 0)
    assert "epoch" not in rows[0].metrics()
    assert rows[-1].metrics()["learning_rate"] < rows[0].metrics()["learning_rate"]


def test_training_learns(tmp_path: Path) -> None:
    from halfstep.prepare.images.pipeline import prepare

    prepare(DataParams(source="digits", image_size=8, color="grey"), tmp_path)
    settings = TrainParams(epochs=4, batch_size=32, learning_rate=0.02, augment=Augment(shift_fraction=0.05))
    result = trained(tmp_path, settings=settings)
    accuracy = result.metrics().test_accuracy
    assert accuracy is not None
    assert accuracy > 0.6  # by chance 0.1
    assert result.epochs[-1].logs["loss"] < result.epochs[0].logs["loss"]


@pytest.fixture
def user_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A user's model whose activations overflow: that of `build` always, that of `late` only outside of training."""
    source = """
import keras


@keras.saving.register_keras_serializable("user_model")
class Overflow(keras.layers.Layer):
    def __init__(self, always=True, **options):
        super().__init__(**options)
        self.always = always

    def call(self, inputs, training=False):
        return inputs if training and not self.always else inputs * float("inf")


def network(shape, classes, always):
    pixels = keras.Input(shape, dtype="uint8")
    features = keras.layers.Flatten()(keras.layers.Rescaling(1 / 255)(pixels))
    features = keras.layers.Dense(classes)(Overflow(always)(features))
    return keras.Model(pixels, keras.layers.Activation("softmax", dtype="float32")(features))


def build(shape, classes):
    return network(shape, classes, always=True)


def late(shape, classes):
    return network(shape, classes, always=False)
"""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    name = f"user_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(source)
    return name


def test_non_finite_loss_ends_the_training(
    prepared: Path, images: PreparedImages, user_model: str, tmp_path: Path
) -> None:
    result = trained(
        prepared, "mixed_float16", f"{user_model}:build", settings=SETTINGS.model_copy(update={"epochs": 5})
    )
    assert result.failure is not None
    assert result.failure.reason.startswith("the loss is nan in epoch 1, from step 1 on, at loss scale ")
    assert (result.failure.epoch, result.failure.step) == (1, 1)
    assert result.epochs[0].skipped_steps == len(images.train) // 8  # no gradient was finite
    assert len(result.epochs) == 1
    assert (result.outputs, result.metrics().test_loss) == (None, None)

    write(result, tmp_path / "out")
    metrics = files.read_json(tmp_path / "out" / "metrics.json")
    assert metrics["status"] == "failed"
    assert metrics["reason"] == result.failure.reason
    failure_keys = {"reason", "epoch", "step", "loss_scale", "skipped_share", "overflow"}
    assert set(metrics) == KEYS - {"test_accuracy", "test_loss", "permuted_score", "permuted_p"} | failure_keys
    assert (metrics["epoch"], metrics["step"]) == (1, 1)
    assert not (tmp_path / "out" / "predictions.npy").exists()
    history = pd.read_csv(tmp_path / "out" / "history.csv")
    assert list(history.columns) == COLUMNS + LOSS_SCALE_COLUMNS
    assert history["loss"].isna().tolist() == [True]


@pytest.mark.parametrize(("losses", "first"), [({0: 1.0, 2: np.nan, 1: np.inf}, 1), ({0: 1.0, 1: 2.0}, None)])
def test_first_non_finite_step_is_found_in_any_order(losses: dict[int, float], first: int | None) -> None:
    guard = StopWhenNotFinite(100)
    guard.set_offset(10)
    for step, loss in losses.items():
        guard.on_train_batch_end(step, {"loss": loss})
    assert guard.first_step == (None if first is None else 10 + first)


def test_skipped_steps_are_counted_for_each_epoch(
    prepared: Path, images: PreparedImages, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = keras.optimizers.LossScaleOptimizer.__init__
    monkeypatch.setattr(begin, "__defaults__", (2.0**24, *begin.__defaults__[1:]))
    result = trained(prepared, "mixed_float16", settings=SETTINGS.model_copy(update={"epochs": 6}))
    skipped = [row.skipped_steps or 0 for row in result.epochs]
    scales = [2.0**24, *(row.loss_scale or 0.0 for row in result.epochs)]
    halved = [math.log2(before / after) for before, after in itertools.pairwise(scales)]
    assert skipped == halved  # each skipped step halves the scale
    assert skipped[0] == len(images.train) // 8
    assert skipped[-1] < skipped[0]


@pytest.mark.slow
def test_time_of_listeners_is_not_training_time(prepared: Path) -> None:
    result = trained(prepared, listeners=(lambda _: time.sleep(3.0),), settings=SETTINGS)
    epochs_s = sum(row.epoch_time_s for row in result.epochs)
    assert epochs_s < result.train_time_s < epochs_s + 2.0


def test_out_of_memory_error_says_how_to_find_the_largest_batch() -> None:
    with (
        pytest.raises(ModelError, match=r"batch_size is 8, .* \(\d+ GiB\) is too small; reduce it, .*find_max_batch"),
        _explain_out_of_memory(Trial(TaskParams(), ModelParams(), SETTINGS, Variant(policy="float32"), 0)),
    ):
        raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")


def test_non_finite_probabilities_are_a_failure(prepared: Path, user_model: str) -> None:
    result = trained(prepared, "mixed_bfloat16", f"{user_model}:late")  # in float32, the network would be refused
    assert result.failure == TrainingFailure("the trained network's probabilities are not finite")
    assert math.isfinite(result.epochs[-1].logs["loss"])
    assert math.isnan(result.epochs[-1].logs["val_loss"])
    assert result.outputs is None
    assert result.metrics().test_accuracy is None
