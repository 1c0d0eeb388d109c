"""`halfstep.judge` from Python: scripts, functions of a notebook, and models with their data."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

import halfstep
from halfstep.calling import _copied
from halfstep.errors import CommandError
from halfstep.results.comparison import COMPARISON
from halfstep.system import files
from tests.pipeline.conftest import SMALL

# As in a notebook: what is defined is in no module that another process could import.
CELLS = """
import keras
import numpy as np

import halfstep
from halfstep.tasks import Task

generator = np.random.default_rng(0)
x = generator.normal(size=(600, 16)).astype("float32")
y = (x[:, :8].sum(1) > 0).astype("int32")
units, amounts = 8, {amounts}


def network():
    return keras.Sequential(
        [keras.Input((16,)), keras.layers.Dense(units, activation="relu"), keras.layers.Dense(2, dtype="float32")]
    )


LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def compiled():
    model = network()
    model.compile(keras.optimizers.Adam(0.02), LOSS, metrics=["accuracy"])
    return model


def task(*, batch_size, seed):
    data = {{"train": (x[:400], y[:400]), "validation": (x[400:500], y[400:500]), "test": (x[500:], y[500:])}}
    right = lambda y_true, y_pred: (y_pred.argmax(-1) == y_true).astype("float32")
    how = {{"optimizer": keras.optimizers.Adam(0.02), "loss": LOSS}}
    return Task(model=network(), compile=how, score=right, score_name="accuracy", **data)


found = halfstep.judge({what}, variants=("float32", "mixed_bfloat16"), parameters=amounts)
print(type(found).__name__, list(found.candidates), found.to_frame()["measure"].tolist())
assert ">Training " in found._repr_html_()
"""
DATA = "model=compiled, train=(x[:400], y[:400]), validation=(x[400:], y[400:])"


@pytest.mark.slow
@pytest.mark.parametrize("what", ["task", DATA], ids=["task", "data"])
def test_what_a_notebook_defines_is_judged(what: str, tmp_path: Path, root: Path) -> None:
    amounts = {name: value for name, value in SMALL.items() if name.startswith("profile.")} | {"serve.formats": []}
    amounts |= {"train.epochs": 20, "compare.quality_margin": 0.1}
    code = CELLS.format(what=what, amounts=amounts)
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(root)!r})\n{code}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert done.stdout.splitlines()[-1].startswith("Judged ['mixed_bfloat16'] ['train'")
    assert "quality" in files.read_json(tmp_path / files.JUDGE / COMPARISON)["candidates"]["mixed_bfloat16"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [".halfstep"]


def test_one_thing_is_judged() -> None:
    for arguments in ({}, {"what": "train.py", "model": lambda: None}):
        with pytest.raises(CommandError, match="give what is judged, or model="):
            halfstep.judge(**arguments)
    with pytest.raises(CommandError, match="model is a model; give a function that makes and compiles it"):
        halfstep.judge(model=object())


def test_what_cannot_be_copied_is_named(tmp_path: Path) -> None:
    lock = threading.Lock()

    def train() -> None:
        lock.acquire()

    with pytest.raises(CommandError, match=r"train cannot be copied to another process \(.*lock.*\); make what"):
        halfstep.judge(train, folder=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_edited_function_is_another_script(tmp_path: Path) -> None:
    texts = []
    for units in (8, 16):

        def train(units: int = units) -> int:
            return units

        (name,), _ = _copied(train, tmp_path)
        texts.append((tmp_path / name).read_text())
    assert texts[0] != texts[1]
