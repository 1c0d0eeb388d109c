"""What `environment` and `train` reject of the user's own models."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.cases import Arrange, Case

INPUT = """import keras


def build(input_shape, classes):
    pixels = keras.Input(input_shape, dtype="uint8")
    features = keras.layers.Flatten()(keras.layers.Rescaling(1 / 255)(pixels))
"""
LOGITS = INPUT + "    return keras.Model(pixels, keras.layers.Dense(classes, dtype='float32')(features))\n"
GOOD = LOGITS.replace("classes, dtype", "classes, activation='softmax', dtype")
SUBCLASSED = """import keras


class Network(keras.Model):
    def __init__(self, classes):
        super().__init__()
        self.dense = keras.layers.Dense(classes, activation="softmax")

    def call(self, inputs):
        return self.dense(keras.ops.reshape(keras.ops.cast(inputs, "float32"), (-1, 192)))


def build(input_shape, classes):
    network = Network(classes)
    network(keras.ops.zeros((1, *input_shape)))
    return network
"""
LAYER = """import keras


class Broken(keras.layers.Layer):
    def call(self, inputs, training=False):
        if training:
            BODY
        return inputs


def build(input_shape, classes):
    pixels = keras.Input(input_shape, dtype="uint8")
    features = keras.layers.Flatten()(Broken()(keras.layers.Rescaling(1 / 255)(pixels)))
    return keras.Model(pixels, keras.layers.Dense(classes, activation="softmax", dtype="float32")(features))
"""
UNSAVED = LAYER.replace("BODY", "pass").replace(
    "    def call", "    def __init__(self, function):\n        super().__init__()\n\n    def call"
)
MODELS = {
    "without a softmax": (LOGITS, "it must return probabilities, whose sum is 1: end it with keras.layers.Activation("),
    "with a sigmoid over all classes": (GOOD.replace("softmax", "sigmoid"), "returns rows that sum to"),
    "with log probabilities": (GOOD.replace("softmax", "log_softmax"), "it must return probabilities"),
    "that is not finite at the start": (GOOD.replace("1 / 255", "float('inf')"), "returns values that are not finite"),
    "subclassed and built": (SUBCLASSED, "is the subclassed model Network, which plain Keras cannot load"),
    "already compiled": (
        GOOD.replace("return ", "network = ") + "    network.compile('sgd', 'mse')\n    return network\n",
        "is already compiled; remove compile()",
    ),
    "with two outputs": (
        LOGITS.replace("keras.Model(pixels, ", "keras.Model(pixels, [features, ")[:-2] + "])\n",
        "has 2 outputs; it must have 1",
    ),
    "with float pixels": (GOOD.replace("uint8", "float32"), "takes float32; it must take uint8"),
    "that is a class": ("import keras\nbuild = lambda shape, classes: keras.Model", "returned the class Model"),
    "with one argument": ("build = lambda shape: None", "must be build(input_shape, classes)"),
    "that is None": ("def build(input_shape, classes): ...", "returned NoneType; it must return a keras.Model"),
    "whose module calls sys.exit(0)": ("import sys\nsys.exit(0)\ndef build(a, b): ...", "it raised SystemExit(0)"),
    "whose function calls sys.exit(0)": ("import sys\ndef build(a, b): sys.exit(0)", "it raised SystemExit(0)"),
    "whose function takes one argument": (
        "def build(shape): ...",
        "build(shape) must be build(input_shape, classes)",
    ),
    "whose function is asynchronous": ("async def build(a, b): ...", "returned coroutine"),
    "that raises SystemExit": ("def build(a, b): raise SystemExit", "it raised SystemExit()"),
    "that raises KeyboardInterrupt": ("def build(a, b): raise KeyboardInterrupt", "it raised KeyboardInterrupt()"),
    "whose error has control characters": (
        "def build(a, b): raise ValueError('one\\ntwo\\x1b[31m\\x00')",
        r"cannot be built: one two\x00 (",
    ),
    "whose helper is missing": ("def build(a, b):\n    import gone", "cannot be built: No module named 'gone'"),
    "whose layer fails in the training": (LAYER.replace("BODY", "raise ValueError('a\\nb')"), "cannot be trained: "),
    "whose layer cannot be saved": (UNSAVED.replace("Broken()", "Broken(len)"), "cannot be saved: Object Broken was"),
    "whose layer exits in the training": (LAYER.replace("BODY", "raise SystemExit(0)"), "it raised SystemExit(0)"),
}


def _module(name: str, source: str) -> Arrange:
    def arrange(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (root / f"{name}.py").write_text(source, encoding="utf-8")
        monkeypatch.syspath_prepend(str(root))

    return arrange


CASES = [
    *(
        Case(
            f"train: a model {name}",
            "train --variant float32 --seed 0",
            (fragment,),
            {"model": {"name": f"own_model_{number}:build"}},
            _module(f"own_model_{number}", source),
            data="prepared",
        )
        for number, (name, (source, fragment)) in enumerate(MODELS.items())
    ),
]
