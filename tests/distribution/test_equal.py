"""Two replicas on one host and two loopback hosts with one each: equal bit for bit, and right."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pandas as pd
import pytest

from stages.params import DataParams
from stages.prepare.images.pipeline import prepare
from stages.tasks.batches import ShuffledOrder
from stages.tasks.images import dataset
from tests.distribution import ranks
from tests.distribution.driver import SEED

pytestmark = pytest.mark.fleet

POLICIES = ("float32", "mixed_float16", "mixed_bfloat16")
FLOAT32_LAYERS = ["conv2d_1", "batch_normalization.*"]
BATCH_SIZE = 16
TRAIN: dict[str, Any] = {
    "replicas": 2,
    "epochs": 2,
    "batch_size": BATCH_SIZE,
    "augment": {"flip": True, "rotate_degrees": 10.0, "shift_fraction": 0.1},
}


def case(name: str, variant: str = "float32", model: str = "cnn", **train: Any) -> dict[str, Any]:
    variants: dict[str, Any] = {policy: {"policy": policy} for policy in POLICIES}  # with oneDNN: one process for all
    variants["layers"] = {"policy": "mixed_float16", "float32_layers": FLOAT32_LAYERS}
    params = {"train": TRAIN | train, "model": {"name": model}, "variants": variants}
    return {"name": name, "variant": variant, "params": params}


CASES = {
    "trainings": [
        *(case(policy, policy) for policy in POLICIES),  # with dropout and batch normalization
        case("replica", batch_norm="replica"),
        case("layers", "layers"),
        *(
            case(f"overflow_{replica}", "mixed_float16", f"user_model:overflow_{replica}", epochs=4)
            for replica in (0, 1)
        ),
    ],
    "probes": [
        case("global", model="user_model:normed", augment=False),
        case("replica", model="user_model:normed", augment=False, batch_norm="replica"),
    ],
}
NAMES = [found["name"] for found in CASES["trainings"]]


@dataclass(frozen=True)
class Results:
    """What one host with two replicas, and two hosts, have written."""

    one_host: Path
    two_hosts: Path
    prepared: Path
    outputs: list[tuple[int, str, str]]

    def history(self, name: str, folder: Path | None = None) -> pd.DataFrame:
        table = pd.read_csv((folder or self.one_host) / name / "history.csv", float_precision="round_trip")
        return table.drop(columns="epoch_time_s")

    def probes(self, hosts: int) -> dict[str, np.ndarray]:
        with np.load((self.one_host if hosts == 1 else self.two_hosts) / "probes-0.npz") as archive:
            return dict(archive)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory, store_template: Path) -> Results:
    root = tmp_path_factory.mktemp("equal")
    prepared = root / "prepared"
    # an odd number of validation images: two replicas cannot share them evenly
    images = {"synthetic_images": 150, "synthetic_classes": 3, "image_size": 8}
    prepare(DataParams.model_validate({"source": "synthetic"} | images), prepared)
    (root / "cases.json").write_text(json.dumps(CASES))
    outputs = []
    for hosts, name in ((1, "one"), (2, "two")):
        processes = []
        for rank, variables in enumerate(ranks.tf_configs(hosts)):
            folder = ranks.create(root / f"{name}-{rank}", prepared, store_template)
            shutil.copy(Path(__file__).with_name("user_model.py"), folder)
            command = ["tests.distribution.driver", str(root / "cases.json"), str(root / name)]
            shared = {"HALFSTEP_CHECKPOINTS": str(root / f"checkpoints-{name}"), "TF_CPP_MIN_LOG_LEVEL": "3"}
            processes.append(ranks.start(folder, command, variables | shared))
        outputs += ranks.ended(processes)
    assert [status for status, _, _ in outputs] == [0, 0, 0], outputs
    return Results(root / "one", root / "two", prepared, outputs)


@pytest.mark.parametrize("name", NAMES)
def test_two_hosts_equal_two_replicas_on_one_host_bit_for_bit(results: Results, name: str) -> None:
    one, two = (np.load(folder / name / "predictions.npy") for folder in (results.one_host, results.two_hosts))
    np.testing.assert_array_equal(one, two)
    pd.testing.assert_frame_equal(results.history(name), results.history(name, results.two_hosts), check_exact=True)
    weights = [weights_of(folder / name) for folder in (results.one_host, results.two_hosts)]
    for first, second in zip(*weights, strict=True):
        np.testing.assert_array_equal(first, second)
        assert np.isfinite(first).all()


def weights_of(folder: Path) -> list[np.ndarray]:
    model = keras.saving.load_model(folder / "model.keras", custom_objects={"user_model>Overflow": identity_layer()})
    optimizer = model.optimizer.variables
    # Keras saves no state of random numbers
    found = [variable for variable in (*model.variables, *optimizer) if variable.name != "seed_generator_state"]
    return [np.asarray(variable) for variable in found]


def identity_layer() -> type[keras.layers.Layer]:
    class Overflow(keras.layers.Layer):
        def __init__(self, replica=0, **options):
            super().__init__(**options)

        def call(self, inputs):
            return inputs

    return Overflow


def test_only_the_chief_writes_and_prints(results: Results) -> None:
    chief, follower = results.outputs[1:]
    assert chief[1].count("test accuracy") == len(NAMES)
    assert follower[1:] == ("", "")
    folder = results.one_host.parent / "two-1"
    names = {path.relative_to(folder).as_posix() for path in (*folder.iterdir(), *(folder / "data").iterdir())}
    given = {"data", "data/prepared", "data/environment.json", "mlflow.db", "params.yaml", "user_model.py"}
    assert names - {"__pycache__"} == given


@pytest.mark.parametrize("name", POLICIES)
def test_model_loads_in_plain_keras_and_gives_the_predictions(results: Results, name: str) -> None:
    images = dataset.open_prepared(results.prepared)
    model = keras.saving.load_model(results.one_host / name / "model.keras")
    assert not any(layer.synchronized for layer in model.layers if isinstance(layer, keras.layers.BatchNormalization))
    stored = np.load(results.one_host / name / "predictions.npy")
    assert len(stored) == len(images.test)  # each test image once
    tolerance = 2e-2 if name == "mixed_bfloat16" else 2e-3
    np.testing.assert_allclose(model.predict(np.asarray(images.test.images), verbose=0), stored, atol=tolerance)


def test_layers_in_float32_stay_so_on_all_replicas(results: Results) -> None:
    model = keras.saving.load_model(results.one_host / "layers" / "model.keras")
    dtypes = {layer.name: layer.compute_dtype for layer in model.layers}
    kept = {name for name in dtypes if any(re.fullmatch(pattern, name) for pattern in FLOAT32_LAYERS)}
    assert len(kept) > 1
    assert {dtypes[name] for name in kept} == {"float32"}
    assert dtypes["conv2d"] == "float16"
    assert not np.array_equal(
        *(np.load(results.one_host / name / "predictions.npy") for name in ("layers", POLICIES[1]))
    )


@pytest.mark.parametrize("name", ["float32", "replica"])
def test_validation_is_of_every_image_once(results: Results, name: str) -> None:
    split = dataset.open_prepared(results.prepared).validation
    assert len(split) % 2 == 1
    model = keras.saving.load_model(results.one_host / name / "model.keras")
    loss, accuracy = model.evaluate(np.asarray(split.images), split.labels, verbose=0)
    last = results.history(name).iloc[-1]
    assert last["val_loss"] == pytest.approx(loss, rel=1e-5)
    assert last["val_accuracy"] == pytest.approx(accuracy, rel=1e-6)


@pytest.mark.parametrize("replica", [0, 1])
def test_overflow_on_one_replica_skips_the_step_on_all(results: Results, replica: int) -> None:
    history = results.history(f"overflow_{replica}")
    assert history["skipped_steps"].iloc[0] > 0
    assert history["skipped_steps"].iloc[-1] == 0  # the scale is small enough
    # each skipped step halves the scale
    assert (history["loss_scale"] == 2.0**15 / 2.0 ** history["skipped_steps"].cumsum()).all()
    assert np.isfinite(history["loss"]).all()


def first_batch(results: Results) -> np.ndarray:
    train = dataset.open_prepared(results.prepared).train
    return np.asarray(train.images)[ShuffledOrder(len(train), BATCH_SIZE, SEED).batch(0)] / 255


@pytest.mark.parametrize("hosts", [1, 2])
def test_statistics_are_of_the_whole_batch_or_of_each_replica(results: Results, hosts: int) -> None:
    batch, found = first_batch(results), results.probes(hosts)
    axes = (0, 1, 2)
    for name, function in (("mean", np.mean), ("variance", np.var)):
        np.testing.assert_allclose(found[f"global/{name}"], [function(batch, axis=axes)] * 2, atol=1e-5)
        parts = [function(part, axis=axes) for part in np.split(batch, 2)]
        np.testing.assert_allclose(found[f"replica/{name}"], parts, atol=1e-5)
        assert not np.allclose(parts[0], parts[1], atol=1e-4)
        np.testing.assert_allclose(found[f"replica/saved_{name}"], [np.mean(parts, axis=0)] * 2, atol=1e-5)


@pytest.mark.parametrize("name", ["global", "replica"])
def test_dropout_masks_differ_by_replica_and_call(results: Results, name: str) -> None:
    one, two = results.probes(1), results.probes(2)
    masks = [one[f"{name}/mask/{call}"] for call in range(2)]
    rows = [tuple(row) for mask in masks for row in mask]
    assert len(set(rows)) == 4
    for key, array in one.items():
        np.testing.assert_array_equal(array, two[key], err_msg=key)


def test_initial_weights_are_those_of_one_replica(results: Results) -> None:
    from tests.distribution import user_model

    keras.utils.set_random_seed(SEED)
    model = user_model.normed((8, 8, 3), 3)
    found = results.probes(2)
    for number, variable in enumerate(model.trainable_variables):
        np.testing.assert_array_equal(found[f"global/initial/{number}"], np.asarray(variable))
