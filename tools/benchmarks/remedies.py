"""Plants a cause that a setting can mend, and lets `python -m stages.advise --all` find and measure it.

    python -m tools.benchmarks.remedies --out DIR                        all cases: about half an hour
    python -m tools.benchmarks.remedies --out DIR --cases slow_input     one of them

Each case is a `dvc repro` and then the advice, in a clone of the project in a temporary folder. Printed is each change
that was tried, what it may bring at most, what it brought over its parent with its interval, and whether it was kept.
Cases that this machine cannot compute are skipped by name. Each case is written to a file in `--out` at once; a file
that exists is not measured again. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stages.machine.fingerprint import fingerprint
from tools.benchmarks.checkout import Checkout, cloned, resolved

MINUTES = 15
SMALL: dict[str, Any] = {"profile.inference_batch_sizes": []}
SPEED_ONLY = SMALL | {"train.epochs": 0, "data.source": "synthetic"}
# Each batch waits for its examples, which an augmentation that cannot be cached by the task itself would cost, too.
SLOW_INPUT = """
import time

import keras
import numpy as np
import tensorflow as tf

from stages.tasks import Task


def slow(x, y):
    def wait(x):
        time.sleep(0.004)
        return x
    found = tf.numpy_function(wait, [x], tf.float32)
    found.set_shape(x.shape)
    return found, y


def right(y, predicted):
    return ((predicted > 0.5) == (y > 0.5))[:, 0].astype(float)


def build(*, batch_size, seed):
    random = np.random.default_rng(0)
    x = random.normal(size=(960, 64)).astype("float32")
    y = (x[:, :8].mean(axis=1, keepdims=True) > 0).astype("float32")
    model = keras.Sequential([
        keras.Input((64,)), keras.layers.Dense(128, activation="relu"),
        keras.layers.Dense(1, activation="sigmoid", dtype="float32"),
    ])
    data = tf.data.Dataset.from_tensor_slices((x[:640], y[:640])).shuffle(640, seed=seed).batch(batch_size)
    return Task(
        model=model, compile={"optimizer": "adam", "loss": "binary_crossentropy"}, train=data.map(slow),
        test=(x[640:], y[640:]), score=right, score_name="accuracy",
    )
"""
TINY_LAYERS = """
import keras


def build(image_shape, classes):
    x = inputs = keras.Input(image_shape, dtype="uint8")
    x = keras.layers.Flatten()(keras.layers.Rescaling(1 / 255)(x))
    x = keras.layers.Dense(4)(x)
    for _ in range(40):
        x = keras.layers.Dense(4, activation="relu")(x)
    return keras.Model(inputs, keras.layers.Dense(classes, activation="softmax", dtype="float32")(x))
"""


@dataclass(frozen=True)
class Case:
    """A planted cause.

    Attributes:
        planted: the key whose value is wrong.
        helps: whether it costs this model time, so that to change it helps.
        parameters: by dotted name.
        source: of the user's module `planted.py`; empty without one.
        skipped: why this machine cannot compute it; None if it can.
    """

    planted: str
    parameters: dict[str, Any]
    source: str = ""
    helps: bool = True
    skipped: Callable[[dict[str, Any]], str | None] = field(default=lambda _: None)


def _needs_bfloat16(machine: dict[str, Any]) -> str | None:
    sets = set(machine["cpu"].get("instruction_sets", ()))
    return None if sets & {"avx512_bf16", "amx_bf16", "bf16"} else "the CPU has no instructions for bfloat16"


def _needs_gpu(machine: dict[str, Any]) -> str | None:
    return None if machine["gpus"] else "there is no GPU"


CASES = {
    "slow_input": Case(
        "cache_input",
        SMALL
        | {
            "task.name": "planted:build",
            "compare.quality_margin": 0.05,
            "train.variants": ["float32", "mixed_bfloat16"],
        },
        SLOW_INPUT,
    ),
    "small_batch": Case(
        "batch_size",
        SPEED_ONLY | {"train.batch_size": 4, "profile.find_max_batch": True, "train.variants": ["float32"]},
    ),
    "tiny_layers": Case(
        "batch_size", SPEED_ONLY | {"model.name": "planted:build", "train.variants": ["float32"]}, TINY_LAYERS
    ),
    "float16": Case(
        "policy",
        SPEED_ONLY | {"model.name": "resnet20", "train.variants": ["float32", "mixed_float16"]},
        skipped=_needs_bfloat16,
    ),
    "onednn_off": Case(
        "onednn",
        SPEED_ONLY | {"model.name": "resnet20", "variants.float32.onednn": False, "train.variants": ["float32"]},
    ),
    "onednn_off_without_effect": Case(
        "onednn",
        SPEED_ONLY | {"task.name": "planted:build", "variants.float32.onednn": False, "train.variants": ["float32"]},
        SLOW_INPUT.replace("time.sleep(0.004)", "pass"),
        helps=False,
    ),
    "kernel_launches": Case("xla", SPEED_ONLY, skipped=_needs_gpu),
}


def measure(case: Case, commit: str) -> dict[str, Any]:
    """What `advise --all` tried, and its list before."""
    with cloned(commit) as checkout:
        if case.source:
            (checkout.root / "planted.py").write_text(case.source, encoding="utf-8")
        checkout.configure(case.parameters)
        seconds = checkout.run("dvc", "repro")
        listed = _advice(checkout)
        advised_s = checkout.run("python", "-m", "stages.advise", "--all", "--minutes", f"{MINUTES}")
        path = checkout.root / ".halfstep/advise.json"
        trials = json.loads(path.read_text(encoding="utf-8"))["trials"] if path.is_file() else []
        return {"listed": listed, "trials": trials, "repro_s": seconds, "advise_s": advised_s}


def _advice(checkout: Checkout) -> list[dict[str, Any]]:
    checkout.run("sh", "-c", "python -m stages.advise --json > listed.json")
    return list(json.loads((checkout.root / "listed.json").read_text(encoding="utf-8")))


def lines(name: str, case: Case, found: dict[str, Any]) -> list[str]:
    """A line for each trial."""
    planted = f"planted: {case.planted}{'' if case.helps else ', which costs this model nothing'}"
    head = f"{name} ({planted}; dvc repro {found['repro_s']:.0f} s, advise {found['advise_s']:.0f} s)"
    if not found["trials"]:
        return [f"{head}: nothing was tried"]
    return [head, *map(_trial_line, found["trials"])]


def _trial_line(trial: dict[str, Any]) -> str:
    change, brought = trial["change"], trial.get("over_parent")
    at_most = f"at most {change['at_most']:.2f}×" if change.get("at_most") else "limit not known"
    ratio = f"{brought['ratio']:.2f}× ({brought['low']:.2f} to {brought['high']:.2f})" if brought else "not compared"
    return (
        f"    {trial['variant']}: {change['key']} → {change['to']}, {at_most}: {ratio} over {trial['parent']}, "
        f"{'kept' if trial['kept'] else 'dropped'}"
    )


def main() -> None:
    """Measures the cases that have no file yet, and prints all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for one JSON file per case")
    parser.add_argument("--commit", default="HEAD")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    machine, commit = fingerprint(), resolved(arguments.commit)
    print(f"{machine['device']}, commit {commit[:10]}")
    for name in arguments.cases:
        case, path = CASES[name], arguments.out / f"{name}.json"
        if why := case.skipped(machine):
            print(f"{name}: skipped, {why}")
            continue
        if not path.is_file():
            path.write_text(json.dumps(measure(case, commit)), encoding="utf-8")
        print("\n".join(lines(name, case, json.loads(path.read_text(encoding="utf-8")))), flush=True)


if __name__ == "__main__":
    main()
