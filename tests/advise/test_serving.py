"""`python -m halfstep advise` names formats that were not tried, and its lines export a model of one's own."""

from __future__ import annotations

import pathlib
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from halfstep.advise.serving import EXPORT_LINES, serving_lines, untried
from halfstep.params.schema import Params
from halfstep.results.comparison import ServedRow, Serving
from halfstep.serve.worker import load
from halfstep.system.quiet import quiet
from halfstep.words.formats import FORMATS
from tests.advise.test_advice import comparison

ALL = [name for name, item in FORMATS.items() if item.file_of is None]
NAMES = [name for name in EXPORT_LINES if not FORMATS[name].missing]


def settings(*formats: str) -> Params:
    return Params.model_validate({"serve": {"formats": list(formats)}})


def test_formats_that_were_not_tried_are_named_with_the_command() -> None:
    lines = list(serving_lines(comparison(), settings("keras", "litert")))
    assert lines[0].startswith("Serving: SavedModel, LiteRT float16")
    assert lines[1].startswith("    dvc exp run -S '++serve.formats=[keras, litert, saved_model, litert_float16")
    assert list(serving_lines(comparison(), settings(*ALL))) == []
    assert untried(settings(*ALL)) == []
    assert untried(settings())[:2] == ["saved_model", "litert"]


def test_best_format_has_the_lines_that_export_to_it() -> None:
    row = ServedRow(variant="float32", format="litert", file="data/serve/models/litert/model.tflite")
    serving = Serving(weights="float32", best="litert", rows=(row,), sentence="")
    document = comparison().model_copy(update={"serving": serving})
    lines = list(serving_lines(document, settings(*ALL)))
    assert lines[0] == "To export your own model to LiteRT, as is advised:"
    assert lines[-2] == '    model.export("model.tflite", format="litert")'
    assert lines[-1] == "How it is loaded and called: data/serve/models/litert/README.md"


def test_file_that_was_converted_has_the_lines_of_both_formats() -> None:
    note = "converted from its ONNX file"
    row = ServedRow(variant="float32", format="openvino", file="data/serve/models/openvino/model.xml", note=note)
    serving = Serving(weights="float32", best="openvino", rows=(row,), sentence="")
    lines = "\n".join(serving_lines(comparison().model_copy(update={"serving": serving}), settings(*ALL)))
    assert lines.index("convert.from_graph_def") < lines.index("openvino.save_model")


@pytest.mark.parametrize("name", NAMES)
def test_lines_export_a_model_that_predicts_as_keras_does(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    x_train = np.random.default_rng(0).random((300, 6), np.float32)
    inputs = keras.Input((6,), name="x0")
    model = keras.Model(inputs, keras.layers.Dense(3, activation="softmax")(inputs))
    known = {"model": model, "tf": tf, "pathlib": pathlib, "x_train": x_train}
    with quiet():
        exec("\n".join(EXPORT_LINES[name]), known)
        (path,) = (entry for entry in tmp_path.iterdir() if entry.suffix == FORMATS[name].suffix)
        (predicted,) = load(name, path).predictor([x_train[:5]])([x_train[:5]])
    np.testing.assert_allclose(predicted, model(x_train[:5]), atol=0.02 if "int8" in name else 1e-3)
