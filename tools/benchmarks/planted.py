"""Plants a layer that costs time in one arm only, and shows what the account makes of it.

    python -m tools.benchmarks.planted --repeats 4 --turns 6

Both arms compute all but a small layer in float32; the candidate alone has the planted layer: a product, 200 small
elementwise operations, or conversions back and forth. The account should name the kind and the layer, its size within
25 % of what the untraced steps beside the traces say. Nothing is asserted; a table is printed.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from stages import files
from stages.compare.explain.accounts import Accounts, part_change
from stages.params import ModelParams, Params, TaskParams, TrainParams, Variant
from stages.prepare.own_task import prepare_task
from stages.tasks.spec import TaskSpec
from tools.benchmarks.account import BASELINE, CANDIDATE, ROOT, measured

KINDS = {"product": "matrix_product", "elementwise": "memory", "casts": "cast"}  # by what is planted
POLICIES = {BASELINE: BASELINE, CANDIDATE: CANDIDATE}
MODULE = """
import keras
import numpy as np
import tensorflow as tf

from stages.tasks import Task


class Planted(keras.layers.Layer):
    def __init__(self, what, **keywords):
        super().__init__(**keywords)
        self.what = what

    def call(self, x):
        if self.what == "product":
            rows = tf.fill((550, 550), tf.reduce_mean(tf.stop_gradient(x)))
            return x + 1e-12 * tf.reduce_mean(tf.linalg.matmul(rows, rows))
        if self.what == "elementwise":
            y = tf.stop_gradient(x)
            for step in range(200):
                y = tf.sin(y) if step % 2 else y * 0.5
            return x + 1e-12 * y
        y = tf.tile(tf.stop_gradient(x), (1, 50))
        for _ in range(3):
            y = tf.cast(tf.cast(tf.cast(y, tf.bfloat16), tf.float16), tf.float32)
        return x + 1e-12 * tf.reduce_mean(y)


def build(*, batch_size, seed, what):
    generator = np.random.default_rng(seed)
    x, y = generator.normal(size=(512, 256)).astype("float32"), generator.integers(0, 2, (512, 1)).astype("float32")
    inputs = keras.Input((256,), dtype="float32")
    hidden = inputs
    for _ in range(4):
        hidden = keras.layers.Dense(1024, activation="relu", dtype="float32")(hidden)
    if keras.config.dtype_policy().name == "mixed_bfloat16":
        hidden = Planted(what, name="planted", dtype="float32")(hidden)
    hidden = keras.layers.Dense(8)(hidden)  # the only layer that follows the policy
    outputs = keras.layers.Dense(1, activation="sigmoid", dtype="float32")(hidden)
    return Task(
        model=keras.Model(inputs, outputs),
        compile={"optimizer": "sgd", "loss": "binary_crossentropy"},
        train=tf.data.Dataset.from_tensor_slices((x, y)).batch(batch_size, drop_remainder=True),
        validation=(x[:64], y[:64]),
        test=(x[:128], y[:128]),
        score=lambda y_true, y_pred: -np.abs(y_pred - y_true)[:, 0],
        score_name="closeness",
    )
"""


def planted(what: str, *, repeats: int, turns: int, steps: int) -> Accounts:
    """The account of a planted layer, in the working folder, which must be on the path of modules."""
    Path("planted_task.py").write_text(MODULE, encoding="utf-8")
    task = TaskParams(name="planted_task:build", arguments={"what": what})
    train = TrainParams(batch_size=64, variants=(BASELINE,))
    prepare_task(Params(task=task, train=train, variants={BASELINE: Variant(policy=BASELINE)}), files.PREPARED)
    spec = TaskSpec(task, ModelParams(), train, prepared_sha256=files.verify_manifest(files.PREPARED))
    return measured(spec, POLICIES, 0, repeats=repeats, turns=turns, steps=steps)[0]


def row_of(what: str, accounts: Accounts) -> dict[str, Any]:
    """What the account says of a planted layer."""
    kind = accounts.change(*2 * [lambda rows: rows["kind"] == KINDS[what]])
    layer = accounts.change(*2 * [lambda rows: rows["layer"] == "planted"])
    step = part_change(accounts.calm)
    return {
        "planted": what,
        "step, ms": f"{step.baseline_ms:.2f}",
        "untraced steps, ms": f"{step.delta:+.2f} ± {step.delta - step.low:.2f}",
        f"kind {KINDS[what]}": f"{kind.delta:+.2f} ± {kind.delta - kind.low:.2f}",
        "layer, ms": f"{layer.delta:+.2f} ± {layer.delta - layer.low:.2f}",
        "kind / untraced": f"{kind.delta / step.delta:.2f}",
        "layer / untraced": f"{layer.delta / step.delta:.2f}",
    }


def largest(accounts: Accounts) -> tuple[str, str]:
    """Kind and layer of the operations that cost the candidate most."""
    times, changes = accounts.changes(["kind", "layer"])
    operations = [place for place, (kind, _) in enumerate(times.index) if kind in KINDS.values()]
    kind, layer = times.index[max(operations, key=lambda place: changes.deltas[place])]
    return str(kind), str(layer)


def main() -> None:
    """Measures all and prints a line for each."""
    parser = argparse.ArgumentParser(prog="python -m tools.benchmarks.planted", description=__doc__)
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--steps", type=int, default=8)
    amounts: Mapping[str, int] = vars(parser.parse_args())
    for what in KINDS:
        with tempfile.TemporaryDirectory(prefix="halfstep-benchmark-") as folder:
            os.environ["PYTHONPATH"] = os.pathsep.join([folder, str(ROOT)])
            os.chdir(folder)
            found = planted(what, **amounts)
            os.chdir(ROOT)
        print(pd.DataFrame([row_of(what, found)]).to_string(index=False), largest(found), flush=True)


if __name__ == "__main__":
    main()
