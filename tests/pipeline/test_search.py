"""`python -m stages.search` on planted overflow, and where nothing is planted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from tests.pipeline.conftest import child_environment

if TYPE_CHECKING:
    from tests.pipeline.conftest import Checkout

TASK = """
import keras
import numpy as np
import tensorflow as tf

from stages.tasks import Task


class Planted(keras.layers.Layer):
    def __init__(self, inside, up, back, **options):
        super().__init__(**options)
        self.inside, self.up, self.back = inside, up, back

    def call(self, x):
        x = tf.sqrt(tf.square(x * self.inside) + 1e-4) / self.inside if self.inside > 1 else x
        def identity(value):
            return value * self.up, lambda up: tf.cast(tf.cast(up, tf.float32) * self.back, up.dtype)
        return tf.custom_gradient(identity)(x)


class Busy(keras.layers.Layer):  # multiplies matrices in one precision alone
    def __init__(self, only_in, products, **options):
        super().__init__(**options)
        self.only_in, self.products = only_in, products

    def call(self, x):
        if self.compute_dtype == self.only_in:
            matrix = tf.fill((256, 256), tf.cast(x[0, 0], tf.float32))
            for _ in range(self.products):
                matrix = tf.tanh(tf.matmul(matrix, matrix))
            x = x + tf.cast(matrix[0, 0] * 1e-9, x.dtype)
        return x


def right(y, predicted):
    return ((predicted > 0.5) == (y > 0.5))[:, 0].astype(float)


def build(*, batch_size, seed, inside=1.0, up=1.0, back=1.0, busy=0):
    x = np.random.default_rng(0).normal(size=(960, 16)).astype("float32")
    y = (x[:, :4].sum(axis=1, keepdims=True) > 0).astype("float32")
    inputs = keras.Input((16,))
    z = keras.layers.Dense(16, name="first")(inputs)
    other = "float32" if busy else None  # of small layers, any may be faster by chance: only one is left in 16 bit
    z = Planted(inside, up, back, name="planted", dtype=other)(z)
    z = keras.layers.Dense(16, activation="tanh", dtype=other, name="later")(z)
    z = keras.layers.Dense(16, activation="tanh", dtype=other, name="after")(z)
    if busy:
        z = Busy("bfloat16", busy, name="slow_in_16_bits")(z)
        z = Busy("float32", 2 * busy, name="slow_in_float32")(z)
    model = keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid", dtype="float32", name="last")(z))
    return Task(
        model=model, compile={"optimizer": "adam", "loss": "binary_crossentropy"}, train=(x[:640], y[:640]),
        validation=(x[640:800], y[640:800]), test=(x[640:], y[640:]), score=right, score_name="accuracy",
    )
"""
PLANTED: dict[str, tuple[dict[str, float], str, str, set[str]]] = {
    "inside": ({"inside": 1000.0}, "arm_failed", "planted", {"planted"}),
    "output": ({"up": 1e6}, "arm_failed", "planted", {"planted", "later"}),
    "gradient": ({"back": 1e12}, "loss_scale_collapse", "planted", {"first", "planted"}),
    "vanishing": ({"back": 1e-12}, "gradient_underflow", "first", {"first", "planted"}),
}


@pytest.fixture
def planted(pristine: Checkout, tmp_path: Path) -> Checkout:
    checkout = pristine.copy(tmp_path / "halfstep")
    (checkout.root / "own.py").write_text(TASK)
    checkout.configure(
        {
            "task.name": "own:build",
            "train.variants": ["float32", "mixed_float16"],
            "train.batch_size": 32,
            "train.epochs": 4,
            "compare.quality_margin": 0.05,
            "profile.inference_batch_sizes": [],
            "profile.max_seconds": 10,
        }
    )
    return checkout


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANTED)
def test_smallest_set_that_trains_is_found(planted: Checkout, name: str) -> None:
    arguments, code, layer, expected = PLANTED[name]
    planted.configure({"task.arguments": arguments})
    planted.check_output("dvc", "repro")
    reasons = planted.json("data/compare/comparison.json")["candidates"]["mixed_float16"]["reasons"]
    found = next(reason for reason in reasons if reason["code"] == code)
    assert layer in found["text"]
    assert found["change"]["key"] == "variants.mixed_float16.float32_layers"
    assert layer in found["change"]["to"]

    before = yaml.safe_load((planted.root / "params.yaml").read_text())
    output = planted.check_output("python", "-m", "stages.search", "mixed_float16", "--minutes", "3")
    after = yaml.safe_load((planted.root / "params.yaml").read_text())
    entry = after["variants"].pop("mixed_float16_layers")
    assert set(entry["float32_layers"]) == expected
    assert after["train"]["variants"].pop() == "mixed_float16_layers"
    assert after == before
    assert "`dvc repro` trains and measures it anew" in output

    again = planted.check_output("python", "-m", "stages.search", "mixed_float16")
    assert "search: " not in again  # what was tried is kept
    assert "was added" in again


@pytest.mark.slow
def test_nothing_is_needed_where_nothing_is_planted(planted: Checkout) -> None:
    planted.check_output("dvc", "repro")
    before = (planted.root / "params.yaml").read_text()
    output = planted.check_output("python", "-m", "stages.search", "mixed_float16", "--minutes", "3")
    assert "Nothing is needed" in output or "None pays" in output
    assert (planted.root / "params.yaml").read_text() == before


@pytest.mark.slow
def test_search_that_is_ended_goes_on_and_its_best_set_is_trained(planted: Checkout) -> None:
    changes = {"train.variants": ["float32", "mixed_bfloat16"], "profile.processes": 6}  # beside other tests
    planted.configure({"task.arguments": {"busy": 12}, **changes})
    planted.check_output("dvc", "repro")
    before = (planted.root / "params.yaml").read_text()
    command = ["python", "-m", "stages.search", "mixed_bfloat16"]
    assert "The time was up; the next search goes on" in planted.check_output(*command, "--minutes", "0")
    assert (planted.root / "params.yaml").read_text() == before
    kept = planted.root / ".halfstep/search/mixed_bfloat16.json"
    with subprocess.Popen(
        command,
        cwd=planted.root,
        env=child_environment(planted.root),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        while process.poll() is None and not any(row["stage"] for row in json.loads(kept.read_text())["candidates"]):
            time.sleep(0.1)
        assert process.poll() is None, "it ended before it was killed"
        os.killpg(process.pid, signal.SIGKILL)
    output = planted.check_output(*command)
    assert "measurement 1:" not in output
    found = json.loads(kept.read_text())
    assert any(row["float32_layers"] == ["slow_in_16_bits"] for row in found["candidates"])
    assert found["outcome"] in ("faster", "none pays")  # a busy machine may not settle by how much it is faster
    if found["outcome"] == "none pays":
        return
    assert found["entry"]["float32_layers"] == ["slow_in_16_bits"]
    (best,) = [row for row in found["candidates"] if "training" in row]
    assert best["training"]["trains"]
    assert abs(best["trained_val_change"]["delta"]) < 0.1
    assert best["over_baseline"]["low"] > 1.05


@pytest.mark.slow
def test_what_cannot_be_searched_is_one_line(pristine: Checkout) -> None:
    for name, said in {
        "float32": "'float32' is compare.baseline",
        "mixed_float61": "'mixed_float61' is not in train.variants",
        "mixed_bfloat16": "dvc repro",
    }.items():
        done = pristine.run("python", "-m", "stages.search", name)
        assert done.returncode != 0
        assert said in done.stderr
        assert len(done.stderr.splitlines()) == 1
