"""What `train` rejects of the user's own models; tests/tasks/images/models has what is wrong with a model itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.cases import Arrange, Case

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
MODELS = {
    "whose layer fails in the training": (LAYER.replace("BODY", "raise ValueError('a\\nb')"), "cannot be trained: "),
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
    )
]
