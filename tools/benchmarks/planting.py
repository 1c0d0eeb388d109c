"""Planted layers that cost time in one arm only: does the account find kind, layer and size?

Both arms compute all but a small layer in float32; the candidate alone has the planted layer: a product, 200 small
elementwise operations, or conversions back and forth. The account should name the kind and the layer, its size within
25 % of what the untraced steps beside the traces say.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, replace
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar

import pandas as pd

from halfstep.compare.explain.accounts import Accounts, calm_steps_ms, part_change
from halfstep.params.schema import ModelParams, Params, TaskParams, TrainParams, Variant
from halfstep.prepare.trying import prepare_task
from halfstep.profile.extras import account_rows
from halfstep.profile.plan import ACCOUNT_WINDOWS, SEEN_STEPS, TURN_MS
from halfstep.profile.records import FirstStep, TracedStretch
from halfstep.profile.short_trace import ShortTrace
from halfstep.profile.worker_process import WorkerProcess
from halfstep.results.profile import AccountRow, Round
from halfstep.system import files
from halfstep.system.fork_server import stop_servers
from halfstep.system.locking import machine_lock
from halfstep.tasks.trial import Trial

_T = TypeVar("_T")
KINDS = {"product": "matrix_product", "elementwise": "memory", "casts": "cast"}  # by what is planted
BASELINE, CANDIDATE = "float32", "mixed_bfloat16"
ROUNDS = 24  # without the profiler, in a repeat
MODULE = """
import keras
import numpy as np
import tensorflow as tf

from halfstep.tasks import Task


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


def planted(what: str, *, repeats: int = 4, turns: int = 2, steps: int = 8) -> Accounts:
    """The account of a planted layer, in the working folder, which must be on the path of modules."""
    Path("planted_task.py").write_text(MODULE, encoding="utf-8")
    task = TaskParams(name="planted_task:build", arguments={"what": what})
    train = TrainParams(batch_size=64, variants=(BASELINE,))
    prepare_task(Params(task=task, train=train, variants={BASELINE: Variant(policy=BASELINE)}), files.PREPARED)
    trial = Trial(task, ModelParams(), train, Variant(policy=BASELINE), 0, files.verify_manifest(files.PREPARED))
    return measured(trial, repeats=repeats, turns=turns, steps=steps)


def measured(trial: Trial, *, repeats: int, turns: int, steps: int) -> Accounts:
    """An account of the candidate: in each repeat new processes, which run rounds, and are then traced in turns."""
    arms = (BASELINE, CANDIDATE)
    rows: dict[str, list[AccountRow]] = {arm: [] for arm in arms}
    rounds: dict[str, list[Round]] = {arm: [] for arm in arms}
    generator = random.Random(0)
    with machine_lock(), ExitStack() as outer:
        outer.callback(stop_servers)
        for repeat in range(repeats):
            with ExitStack() as stack:
                workers = {
                    arm: stack.enter_context(closing(WorkerProcess(arm, replace(trial, variant=Variant(policy=arm)))))
                    for arm in arms
                }
                for worker in workers.values():
                    worker.call(FirstStep, "warm_up", 4)
                    worker.call(NoneType, "begin_account", SEEN_STEPS)  # what is computed once
                    worker.call(NoneType, "account_window", 1, 0)
                    worker.call(ShortTrace, "end_account").read()
                    worker.stand_still()
                round_steps = max(1, math.ceil(TURN_MS / _in_turn(float, workers[BASELINE], "train_round", 1)))
                for place in range(ROUNDS):
                    for arm in generator.sample(arms, len(arms)):
                        time_ms = _in_turn(float, workers[arm], "train_round", round_steps)
                        rounds[arm].append(Round(repeat, place, 0, round_steps, time_ms))
                stretches: dict[str, list[TracedStretch]] = {arm: [] for arm in arms}
                for _ in range(turns):
                    for arm in arms:
                        _in_turn(NoneType, workers[arm], "begin_account", 0)
                    for _ in range(ACCOUNT_WINDOWS):
                        for arm in generator.sample(arms, len(arms)):
                            _in_turn(NoneType, workers[arm], "account_window", steps, 0)
                    for arm in arms:
                        stretches[arm] += _in_turn(ShortTrace, workers[arm], "end_account").read()
                for arm, worker in workers.items():
                    rows[arm] += account_rows(repeat, stretches[arm])
                    worker.go_on()
    accounts = Accounts.scaled(
        [_table(arm_rows) for arm_rows in rows.values()],
        [calm_steps_ms(_table(arm_rounds)) for arm_rounds in rounds.values()],
    )
    assert accounts is not None, "there are enough repeats"
    return accounts


def _table(rows: Sequence[AccountRow | Round]) -> pd.DataFrame:
    return pd.DataFrame(list(map(asdict, rows)))


def _in_turn(kind: type[_T], worker: WorkerProcess, method: str, *arguments: object) -> _T:
    """Calls a method of a worker, which stands still before and after."""
    worker.go_on()
    result = worker.call(kind, method, *arguments)
    worker.stand_still()
    return result


def row_of(what: str, accounts: Accounts) -> dict[str, Any]:
    """What the account says of a planted layer, in ms a step: changes with their half-widths."""
    kind = accounts.change(*2 * [lambda rows: rows["kind"] == KINDS[what]])
    layer = accounts.change(*2 * [lambda rows: rows["layer"] == "planted"])
    step = part_change(accounts.step)
    parts = {"untraced steps": step, "kind": kind, "layer": layer}
    return {
        "planted": what,
        **{name: (part.delta, part.delta - part.low) for name, part in parts.items()},
        "kind / untraced": kind.delta / step.delta,
        "layer / untraced": layer.delta / step.delta,
        "largest": largest(accounts),
    }


def largest(accounts: Accounts) -> tuple[str, str]:
    """Kind and layer of the operations that cost the candidate most."""
    times, changes = accounts.changes(["kind", "layer"])
    operations = [place for place, (kind, _) in enumerate(times.index) if kind in KINDS.values()]
    kind, layer = times.index[max(operations, key=lambda place: changes.deltas[place])]
    return str(kind), str(layer)


def report(rows: Sequence[Mapping[str, Any]]) -> str:
    """A line for each planted layer."""
    lines = [
        {
            name: "{:+.2f} ± {:.2f}".format(*value) if name in ("untraced steps", "kind", "layer") else value
            for name, value in row.items()
        }
        for row in rows
    ]
    return pd.DataFrame(lines).to_string(index=False, float_format="%.2f")
