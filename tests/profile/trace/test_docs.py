"""The code in `docs/traces.md` runs as it is, and its traces can be read."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from halfstep.profile.trace import read_trace

MODEL = """
import numpy as np
x, y = np.zeros((1600, 4), "float32"), np.zeros((1600, 1), "float32")  # 50 batches
keras.utils.set_random_seed(0)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8), keras.layers.Dense(1)])
model.compile("sgd", "mse")
"""
LOOP = """
dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(20)

@tf.function
def train_step(batch):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(batch[0], training=True) - batch[1]) ** 2)
    model.optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
"""
SHORT = "\nmodel.fit(x, y, batch_size=32, callbacks=[TraceSteps('logs/short', first=48)])\n"


@pytest.fixture(scope="module")
def folder(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the code of the page was run."""
    page = (root / "docs/traces.md").read_text(encoding="utf-8")
    callback, fit, loop = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    folder = tmp_path_factory.mktemp("traces")
    (folder / "script.py").write_text(callback + MODEL + fit + SHORT + LOOP + loop)
    done = subprocess.run([sys.executable, "script.py"], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize(("name", "marked", "steps"), [("before", 10, 8), ("after", 10, 8), ("short", 3, 3)])
def test_steps_are_found(folder: Path, name: str, marked: int, steps: int) -> None:
    trace = read_trace(folder / "logs" / name)
    assert trace.marked_steps == marked
    assert len(trace.steps) == steps
    assert trace.metrics()["profiler/step_time_ms"] > 0
    assert not any("step markers" in warning for warning in trace.warnings)
