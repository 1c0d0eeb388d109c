"""TF32 and XLA on a GPU: whether they are in force, by results and by kernels.

Each case runs in a process of its own, which the fork server of pytest's process does not need.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from halfstep.machine.fingerprint import gpus
from halfstep.profile.trace import Trace, read_trace

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).parents[2]
MATMUL = """
import json, sys
import numpy as np
from halfstep.tasks import precision
from halfstep.params.schema import Variant
from halfstep.tensorflow_import import tf

variant = Variant(policy="float32", xla=sys.argv[1] == "xla", tf32=sys.argv[2] == "tf32")
precision.activate(variant, require_gpu=True)
# 1 + 2^-12 is a float32 and no TF32 number, whose mantissa has 10 bits. A product with the identity shows the inputs.
exact = np.full((1024, 1024), 1 + 2.0**-12, np.float32)
product = tf.function(tf.matmul, jit_compile=variant.xla)(tf.constant(exact), tf.eye(1024))
print(json.dumps({"largest_error": float(np.abs(product.numpy() - exact).max())}))
"""
STEP = """
import sys
from halfstep.tasks import precision
from halfstep.params.schema import Variant
from halfstep.tensorflow_import import keras, tf

variant = Variant(policy=sys.argv[2], xla=sys.argv[1] == "xla")
precision.activate(variant, require_gpu=True)
x = inputs = keras.Input((32, 32, 64))
for _ in range(4):
    x = keras.layers.ReLU()(keras.layers.BatchNormalization()(keras.layers.Conv2D(64, 3, padding="same")(x)))
outputs = keras.layers.Dense(10, dtype="float32")(keras.layers.GlobalAveragePooling2D()(x))
model = keras.Model(inputs, outputs)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile("sgd", loss, jit_compile=variant.xla)
precision.verify(model, variant, all_layers=False)
images, labels = tf.random.normal((256, 32, 32, 64)), tf.zeros((256,), tf.int32)
batches = iter(tf.data.Dataset.from_tensors((images, labels)).repeat())
model.make_train_function()
for _ in range(5):
    model.train_function(batches)
tf.test.experimental.sync_devices()
tf.profiler.experimental.start(sys.argv[3])
for step in range(6):
    with tf.profiler.experimental.Trace("train", step_num=step, _r=1):
        model.train_function(batches)
tf.test.experimental.sync_devices()
tf.profiler.experimental.stop()
"""


def run(script: str, *arguments: str) -> str:
    """What a script prints on a fresh interpreter."""
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def has_tf32() -> bool:
    return float(gpus()[0].get("compute_capability", 0)) >= 8


def traced(folder: Path, compiler: str, policy: str) -> Trace:
    run(STEP, compiler, policy, str(folder))
    return read_trace(folder)


@pytest.mark.parametrize("compiler", ["plain", "xla"])
def test_products_in_tf32_have_mantissas_of_10_bits(compiler: str) -> None:
    errors: dict[str, float] = {
        name: json.loads(run(MATMUL, compiler, name).splitlines()[-1])["largest_error"] for name in ("tf32", "float32")
    }
    assert errors["float32"] == 0
    if has_tf32():
        assert errors["tf32"] == pytest.approx(2.0**-12)  # rounded, or cut off, to 1
    else:
        assert errors["tf32"] == 0


@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_xla_is_in_force_by_its_kernels(tmp_path: Path, policy: str) -> None:
    """XLA fuses the normalization and the activation; TensorFlow has a kernel for each."""
    plain, compiled = (traced(tmp_path / name, name, policy) for name in ("plain", "xla"))
    names: dict[str, set[str]] = {
        name: {kernel.kernel for kernel in trace.kernels} for name, trace in (("plain", plain), ("xla", compiled))
    }
    assert any("fusion" in name for name in names["xla"])
    assert not any("fusion" in name for name in names["plain"])
    if policy == "mixed_float16" and float(gpus()[0].get("compute_capability", 0)) >= 7:
        for trace in (plain, compiled):  # of the convolutions: without XLA, the normalization takes most of the step
            shares = trace.metrics()
            assert shares["profiler/matrix_tensor_core_percent"] > 50, (shares, trace.kernels)
