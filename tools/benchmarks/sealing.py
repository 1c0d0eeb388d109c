"""What it costs that a process leaves the user's files as they were: its start, and a training step, in turns."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from scipy import stats

from tools.benchmarks.checkout import ROOT

_STEPS = 600
# A step of some milliseconds: shorter ones differ by a quarter from process to process. A callback logs as people do.
_PROGRAM = f"""
import json, sys, time
began_s = time.monotonic()
from pathlib import Path
from halfstep.tensorflow_import import keras, tf
from halfstep.tasks import user_code
if sys.argv[1] == "sealed":
    user_code.seal([Path.cwd()])
import numpy as np
x = np.random.default_rng(0).normal(size=(256 * {_STEPS}, 20)).astype("float32")
layers = [keras.layers.Dense(width, "relu") for width in (1024, 256)]
model = keras.Sequential([keras.Input((20,)), *layers, keras.layers.Dense(2)])
model.compile("adam", "mse")
model.fit(x[:25600], x[:25600, :2], batch_size=256, verbose=0)
started_s = time.monotonic()
model.fit(x, x[:, :2], batch_size=256, verbose=0, callbacks=[keras.callbacks.CSVLogger("log.csv")])
ended_s = time.monotonic()
print(json.dumps({{"start_s": started_s - began_s, "step_ms": 1000 * (ended_s - started_s) / {_STEPS}}}))
"""


def measurements(times: int) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """So many pairs of processes, of which either is the first in turns."""
    yield from ((f"pair {number}", partial(_pair, number)) for number in range(times))


def _pair(number: int) -> dict[str, Any]:
    kinds = ("sealed", "plain") if number % 2 else ("plain", "sealed")
    return {kind: _run(kind) for kind in kinds}


def _run(kind: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory(dir=ROOT) as folder:  # what is in /tmp is not sealed
        command = [sys.executable, "-c", _PROGRAM, kind]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    values: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return values


def report(rows: Sequence[Mapping[str, Any]]) -> str:
    """Ratios of sealed to plain, geometric means with 95 % intervals of a paired t-test of the logarithms."""
    return "\n".join(_lines(rows))


def _lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for name in ("start_s", "step_ms"):
        sealed, plain = (np.array([row[kind][name] for row in rows]) for kind in ("sealed", "plain"))
        test = stats.ttest_1samp(np.log(sealed / plain), 0.0)
        low, high = np.exp(test.confidence_interval(0.95))
        ratio = np.exp(np.mean(np.log(sealed / plain)))
        medians = f"{np.median(plain):.3f}, sealed {np.median(sealed):.3f}"
        yield f"{name}: {medians}; {ratio:.3f} ({low:.3f} to {high:.3f}) times as long, {len(rows)} pairs"
