"""Compares the step time of trainings that wait for their input with that of plain `fit` on the same data.

    python -m tools.benchmarks.input_waits --out DIR                     five tasks: about ten minutes
    python -m tools.benchmarks.input_waits --out DIR --tasks generator   one task

Each task has a pipeline of another kind, whose batches take half of a training step to fifty times as long. It runs
through `dvc repro` in a clone of the project in a temporary folder, and then through `fit` of Keras in a process of its
own, without halfstep. Printed are both step times, the speed-up of mixed_bfloat16 with its interval, its verdict, and
the reasons. Each task is written to a file in `--out` at once, and a file that exists is not measured again. Nothing is
asserted.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import pandas as pd

from tools.benchmarks.checkout import Checkout, cloned, half_width, resolved

CANDIDATE = "mixed_bfloat16"
STEP_MS = 16  # about what a step takes that does not wait
# Milliseconds that a batch of 32 takes, by the kind of pipeline.
TASKS = {"generator": 8, "cached": 24, "map": 64, "workers": 80, "autotuned": 800}
SOURCE = """
import time

import keras
import numpy as np
import tensorflow as tf

BATCH, EXAMPLES, STEPS = 32, 640, 60


class Slow(keras.utils.PyDataset):
    def __init__(self, x, y, wait_s):
        super().__init__(workers=2)
        self.x, self.y, self.wait_s = x, y, wait_s

    def __len__(self):
        return STEPS  # in one epoch, because the workers start anew in the next one

    def __getitem__(self, number):
        time.sleep(self.wait_s)
        number %= EXAMPLES // BATCH
        part = slice(BATCH * number, BATCH * (number + 1))
        return self.x[part], self.y[part]


def pipeline(kind, x, y, wait_s):
    def slow(seconds):
        def apply(x, y):
            def wait(x):
                time.sleep(seconds)
                return x
            found = tf.numpy_function(wait, [x], tf.float32)
            found.set_shape(x.shape)
            return found, y
        return apply

    data = tf.data.Dataset.from_tensor_slices((x, y))
    if kind == "generator":
        def batches():
            for number in range(EXAMPLES // BATCH):
                time.sleep(wait_s)
                part = slice(BATCH * number, BATCH * (number + 1))
                yield x[part], y[part]
        signature = tuple(tf.TensorSpec((BATCH, *part.shape[1:]), part.dtype) for part in (x, y))
        return tf.data.Dataset.from_generator(batches, output_signature=signature)
    if kind == "cached":
        return data.batch(BATCH, drop_remainder=True).cache().map(slow(wait_s))
    if kind == "map":
        return data.map(slow(2 * wait_s / BATCH), num_parallel_calls=2).batch(BATCH, drop_remainder=True).prefetch(2)
    if kind == "workers":
        return Slow(x, y, 2 * wait_s)
    found = data.batch(BATCH, drop_remainder=True).map(slow(wait_s), num_parallel_calls=tf.data.AUTOTUNE)
    return found.prefetch(tf.data.AUTOTUNE)


def parts(kind, wait_ms):
    random = np.random.default_rng(0)
    x = random.normal(size=(EXAMPLES, 24, 24, 3)).astype("float32")
    y = (x.mean(axis=(1, 2, 3)) > 0).astype("float32")[:, None]
    model = keras.Sequential([
        keras.Input((24, 24, 3)), keras.layers.Conv2D(32, 3, activation="relu"),
        keras.layers.Conv2D(32, 3, activation="relu"), keras.layers.GlobalAveragePooling2D(),
        keras.layers.Dense(1, activation="sigmoid", dtype="float32"),
    ])
    return model, x, y, pipeline(kind, x, y, wait_ms / 1e3)


def build(*, batch_size, seed, kind, wait_ms):
    from stages.tasks import Task

    model, x, y, data = parts(kind, wait_ms)
    return Task(
        model=model, compile={"optimizer": "sgd", "loss": "binary_crossentropy"}, train=data, validation=None,
        test=(x[:64], y[:64]), score=lambda y, p: ((p > 0.5) == (y > 0.5)).mean(axis=-1), score_name="accuracy",
    )


def plain(kind, wait_ms):
    model, _, _, data = parts(kind, wait_ms)
    model.compile(optimizer="sgd", loss="binary_crossentropy", jit_compile=False)
    times = []

    class Clock(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            times.append(time.perf_counter())

    if kind == "workers":
        model.fit(data, verbose=0, callbacks=[Clock()])
    else:
        model.fit(data.repeat(), steps_per_epoch=STEPS, verbose=0, callbacks=[Clock()])
    return 1e3 * (times[-1] - times[-41]) / 40
"""


@dataclass(frozen=True)
class Row:
    """One task; times in milliseconds a step."""

    task: str
    batch_ms: float
    plain_ms: float
    step_ms: float
    cached_ms: float | None
    speedup: float
    half_width: float
    verdict: str
    reasons: tuple[str, ...]
    sentence: str
    profile_s: float


def measured(kind: str, batch_ms: int, commit: str) -> Row:
    """Runs one task through `dvc repro` and through `fit`."""
    with cloned(commit) as checkout:
        (checkout.root / "slow_input.py").write_text(SOURCE, encoding="utf-8")
        checkout.configure(
            {
                "task.name": "slow_input:build",
                "task.arguments": {"kind": kind, "wait_ms": batch_ms},
                "train.variants": ["float32", CANDIDATE],
                "train.epochs": 1,
                "train.batch_size": 32,
                "profile.inference_batch_sizes": [32],
            }
        )
        _, stages_s, _ = checkout.timed_stages("dvc", "repro")
        return _row(kind, batch_ms, checkout, stages_s["profile"])


def _row(kind: str, batch_ms: int, checkout: Checkout, profile_s: float) -> Row:
    command = f"import slow_input; open('plain', 'w').write(str(slow_input.plain({kind!r}, {batch_ms})))"
    checkout.run("python", "-c", command)
    comparison, metrics = checkout.comparison(), checkout.summary("float32")["metrics"]
    candidate = comparison["candidates"][CANDIDATE]
    speedup = candidate["speedup"]["train"]
    return Row(
        task=kind,
        batch_ms=batch_ms,
        plain_ms=float((checkout.root / "plain").read_text()),
        step_ms=metrics["step_time_ms/mean"],
        cached_ms=metrics.get("step_time_ms/cached_batch"),
        speedup=speedup["ratio"],
        half_width=half_width(speedup),
        verdict=candidate["verdict"],
        reasons=tuple(reason["code"] for reason in candidate["reasons"]),
        sentence=candidate["sentence"],
        profile_s=profile_s,
    )


def main() -> None:
    """Measures what is missing and prints the table."""
    parser = argparse.ArgumentParser(prog="python -m tools.benchmarks.input_waits", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for one JSON file per task")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    commit, rows = resolved("HEAD"), []
    for kind in arguments.tasks:
        path = arguments.out / f"{kind}-{commit[:12]}.json"
        if not path.exists():
            print(f"{kind} ...", flush=True)
            row = measured(kind, TASKS[kind], commit)
            path.write_text(json.dumps(asdict(row), indent=1) + "\n", encoding="utf-8")
        rows.append(json.loads(path.read_text(encoding="utf-8")))
    table = pd.DataFrame(rows)
    table.insert(4, "off by", [f"{row['step_ms'] / row['plain_ms'] - 1:+.1%}" for row in rows])
    print(table.to_string(index=False, float_format="%.3g"))


if __name__ == "__main__":
    main()
