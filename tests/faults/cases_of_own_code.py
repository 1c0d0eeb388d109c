"""What the user's own code does to the process, to its data and to itself, and `prepare` must not let pass."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from tests.faults.cases import Arrange, Case

# A regression of one layer. The parts in capitals are replaced.
SOURCE = """
import os

import keras
import numpy as np
import tensorflow as tf

from halfstep.tasks import Task

X = np.arange(128, dtype="float32").reshape(32, 4) / 128
Y = X.sum(axis=1, keepdims=True)


def data(batch_size):
    DATA
    return X, Y


def score(y_true, y_pred):
    SCORE
    return -np.abs(y_true - y_pred)[:, 0]


def build(*, batch_size, seed):
    weights = keras.initializers.GlorotUniform(seed)
    WEIGHTS
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, kernel_initializer=weights)])
    BUILD
    return Task(
        model=model,
        compile={"loss": LOSS, "optimizer": "sgd", "metrics": [METRIC]},
        train=data(batch_size),
        validation=VALIDATION,
        test=(X, Y),
        score=score,
        score_name="closeness",
    )
"""
DEFAULTS = dict.fromkeys(("DATA", "SCORE", "WEIGHTS", "BUILD"), "pass") | {
    "LOSS": "'mse'",
    "METRIC": "",
    "VALIDATION": "None",
}
PARAMS: dict[str, Any] = {
    "task": {"name": "own:build"},
    "train": {"batch_size": 8, "variants": ["float32", "mixed_bfloat16"]},
    "compare": {"quality_margin": 1.0},
}
_numbers = itertools.count()


def own_code(**parts: str) -> str:
    """The source with these parts."""
    text = SOURCE
    for name, default in DEFAULTS.items():
        text = text.replace(name, "\n    ".join(parts.get(name.lower(), default).splitlines()))
    return text


def written(name: str, **parts: str) -> Arrange:
    """Writes the module. What it changes in Keras and TensorFlow is as before when the case ends."""

    def arrange(root: Path, patch: pytest.MonkeyPatch) -> None:
        (root / f"{name}.py").write_text(own_code(**parts), encoding="utf-8")
        _restore_at_the_end(patch)

    return arrange


def _restore_at_the_end(patch: pytest.MonkeyPatch) -> None:
    """Sets each setting to what it is: `patch` does so again at the end, whatever it has become."""
    import keras
    import tensorflow as tf

    class Settings:
        floatx = property(lambda _: keras.config.floatx(), lambda _, value: keras.config.set_floatx(value))
        epsilon = property(lambda _: keras.config.epsilon(), lambda _, value: keras.config.set_epsilon(value))
        layout = property(
            lambda _: keras.config.image_data_format(), lambda _, value: keras.config.set_image_data_format(value)
        )
        policy = property(
            lambda _: keras.config.dtype_policy().name, lambda _, value: keras.config.set_dtype_policy(value)
        )
        eager = property(
            lambda _: tf.config.functions_run_eagerly(), lambda _, value: tf.config.run_functions_eagerly(value)
        )
        tf32 = property(
            lambda _: tf.config.experimental.tensor_float_32_execution_enabled(),
            lambda _, value: tf.config.experimental.enable_tensor_float_32_execution(value),
        )

    settings = Settings()
    for name in ("floatx", "epsilon", "layout", "policy", "eager", "tf32"):
        patch.setattr(settings, name, getattr(settings, name))


def rejected(what: str, fragment: str, **parts: str) -> Case:
    """A case that `prepare` must reject; the module has a name of its own, because Python imports a name once."""
    name = f"own{next(_numbers)}"
    params = PARAMS | {"task": {"name": f"{name}:build"}}
    return Case(f"own code: {what}", "prepare", (fragment.format(own=name),), params, written(name, **parts))


def changed(name: str, setting: str, call: str) -> Case:
    """A case that leaves a setting changed on which results depend."""
    return rejected(f"{name} is left changed", f"task.name = {{own}}:build changed {setting}", build=call)


def _linked(root: Path, _: pytest.MonkeyPatch) -> None:
    (root / "elsewhere").mkdir()
    (root / "data").symlink_to("elsewhere")


def _no_room(_: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setattr("halfstep.environment.preflight.MIN_TEMPORARY_BYTES", 2**60)


def _variable(name: str, value: str, said: str = "; it must be") -> Case:
    def arrange(_: Path, patch: pytest.MonkeyPatch) -> None:
        patch.setenv(name, value)

    return Case(f"{name}={value}", "environment", (f"{name} is {value!r}{said}",), {}, arrange)


def from_generator(lines: str) -> str:
    """Training data of a generator with this body."""
    body = "\n        ".join(lines.splitlines())
    return (
        f"def batches():\n        {body}\n"
        "spec = (tf.TensorSpec((None, 4), tf.float32), tf.TensorSpec((None, 1), tf.float32))\n"
        "return tf.data.Dataset.from_generator(batches, output_signature=spec)"
    )


CASES = [
    Case("data is a symbolic link", "environment", ("data is a symbolic link, through which DVC",), {}, _linked),
    Case("the temporary folder is full", "environment", ("the folder of temporary files, has",), {}, _no_room),
    *(_variable("TF_NUM_INTRAOP_THREADS", value) for value in ("-3", "two", "1e9", "99999")),
    *(
        _variable(name, value, ", by which TensorFlow computes in fewer bits")
        for name, value in (("TF_SET_ONEDNN_FPMATH_MODE", "BF16"), ("ONEDNN_DEFAULT_FPMATH_MODE", "any"))
    ),
    changed("floatx", "keras.config.floatx from float32 to float16", "keras.config.set_floatx('float16')"),
    changed(
        "the image format",
        "keras.config.image_data_format from channels_last to channels_first",
        "keras.config.set_image_data_format('channels_first')",
    ),
    changed("epsilon", "keras.config.epsilon from 1e-07 to 0.001", "keras.config.set_epsilon(1e-3)"),
    changed("the dtype policy", "the dtype policy", "keras.config.set_dtype_policy('mixed_bfloat16')"),
    changed("the seed of Keras", "the seed (keras.utils.set_random_seed)", "keras.utils.set_random_seed(7)"),
    changed("the seed of TensorFlow", "the seed (tf.random.set_seed)", "tf.random.set_seed(7)"),
    changed("eager execution", "eager execution", "tf.config.run_functions_eagerly(True)"),
    changed("TensorFloat-32", "TensorFloat-32", "tf.config.experimental.enable_tensor_float_32_execution(False)"),
    rejected(
        "initial weights without the seed",
        "has other initial weights (sequential",
        weights="weights = keras.initializers.Constant(int.from_bytes(os.urandom(2), 'big') / 65536)",
    ),
    rejected(
        "a layer that is there every second time",
        "has a model with other weights when it is built again",
        build="global BUILT\nBUILT = not globals().get('BUILT')\nif BUILT: model.add(keras.layers.Dense(1))",
    ),
    rejected(
        "a score that draws at random",
        "gives another score with the same weights",
        score="return np.frombuffer(os.urandom(len(y_true)), 'uint8').astype(float)",
    ),
    rejected(
        "a file that a generator does not find",
        "FileNotFoundError: [Errno 2] No such file or directory: 'gone.npy' ({own}.py, line 1",
        data=from_generator("np.load('gone.npy')\nyield X, Y"),
    ),
    rejected(
        "a generator that raises",
        "ValueError: no such picture ({own}.py, line 1",
        data=from_generator("yield X, Y\nraise ValueError('no such picture')"),
    ),
    rejected(
        "a function of the pipeline that raises",
        "KeyError: 'label' ({own}.py, line 1",
        data="def lost(x):\n    return {}['label']\n"
        "rows = tf.data.Dataset.from_tensor_slices((X, Y)).batch(8)\n"
        "return rows.map(lambda x, y: (x, tf.ensure_shape(tf.numpy_function(lost, [y], tf.float32), (8, 1))))",
    ),
    rejected(
        "a PyDataset that raises",
        "no such row ({own}.py, line 1",
        data="class Rows(keras.utils.PyDataset):\n    def __len__(self): return 4\n"
        "    def __getitem__(self, index): raise ValueError('no such row')\nreturn Rows()",
    ),
    rejected(
        "validation data that raise",
        "ValueError: no such sound ({own}.py, line 1",
        data="def lost(x): raise ValueError('no such sound')\nglobal LOST\n"
        "LOST = tf.data.Dataset.from_tensor_slices((X, Y)).batch(8).map(\n"
        "    lambda x, y: (tf.ensure_shape(tf.py_function(lost, [x], tf.float32), (8, 4)), y))",
        validation="LOST",
    ),
    rejected(
        "a loss that raises",
        "no such loss ({own}.py, line ",
        build="def WRONG(y, p): raise ValueError('no such loss')",
        loss="WRONG",
    ),
    rejected(
        "a metric that raises",
        "no such metric ({own}.py, line ",
        build="def WRONG(y, p): raise ValueError('no such metric')",
        metric="WRONG",
    ),
    *(
        rejected(
            f"data that raise {name}",
            f"{said} ({{own}}.py, line 1",
            data=from_generator(f"yield X, Y\nraise {name}('no more')"),
        )
        for name, said in {
            "SystemExit": "SystemExit: no more",
            "KeyboardInterrupt": "KeyboardInterrupt: no more",
            "StopIteration": "RuntimeError: generator raised StopIteration",
            "MemoryError": "MemoryError: no more",
        }.items()
    ),
    rejected(
        "data that call sys.exit in a function of the pipeline",
        "SystemExit: 3 ({own}.py, line 1",
        data="import sys\nrows = tf.data.Dataset.from_tensor_slices((X, Y)).batch(8)\n"
        "def gone(x): sys.exit(3)\n"
        "return rows.map(lambda x, y: (tf.ensure_shape(tf.numpy_function(gone, [x], tf.float32), (8, 4)), y))",
    ),
]
