"""Each runtime takes models of each kind, and predicts as Keras does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest

from halfstep.errors import TaskError
from halfstep.serve import bench
from halfstep.serve.writing import CALIBRATION_EXAMPLES, MOST_STEPS, Writer
from halfstep.system.quiet import quiet
from halfstep.words.formats import FORMATS
from tests.serve import models

RUNTIMES = ("saved_model", "litert", "onnx", "openvino")
KINDS: Mapping[str, Callable[[], keras.Model]] = {
    "LSTM": lambda: models.sequence(keras.layers.LSTM(4)),
    "GRU": lambda: models.sequence(keras.layers.GRU(4)),
    "bidirectional": lambda: models.sequence(keras.layers.Bidirectional(keras.layers.LSTM(4))),
    "stacked": lambda: models.sequence(keras.layers.GRU(4, return_sequences=True), keras.layers.LSTM(3)),
    "masked": models.masked,
    "gelu": models.gelu,
    "constant": models.constant,
    "dictionary": models.dictionary,
}


def writer(model: keras.Model, inputs: Any, folder: Path, batches: Any = ()) -> Writer:
    """Of a model that was built for these inputs."""
    task = SimpleNamespace(
        model=model,
        inputs=lambda rows: keras.tree.map_structure(lambda array: array[:rows], inputs),
        training=SimpleNamespace(from_step=lambda *_: iter(batches)),
    )
    return Writer(task, keras.tree.flatten(inputs), folder)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", RUNTIMES)
@pytest.mark.parametrize("kind", KINDS)
def test_runtime_takes_the_model_and_predicts_as_keras_does(kind: str, name: str, tmp_path: Path) -> None:
    if FORMATS[name].missing:
        pytest.skip(f"{FORMATS[name].label} is not installed")
    keras.utils.set_random_seed(0)
    model = KINDS[kind]()
    inputs = models.inputs_of(model)
    wanted = keras.tree.flatten(model(inputs))
    with quiet():
        runtime = writer(model, inputs, tmp_path).write(name, tmp_path / f"model{FORMATS[name].suffix}")
        flat = keras.tree.flatten(inputs)
        predictions = bench.float32(runtime.predictor(flat)(flat))
    assert len(predictions) == len(wanted)
    for mine, expected in zip(predictions, wanted, strict=True):
        np.testing.assert_allclose(mine, expected, atol=1e-5)
    assert not any(getattr(layer, "unroll", False) for layer in model._flatten_layers())  # the model is as it was


@pytest.mark.parametrize("named", [True, False], ids=["dictionary", "list"])
@pytest.mark.parametrize("name", RUNTIMES)
def test_outputs_have_the_order_of_the_model(name: str, named: bool, tmp_path: Path) -> None:
    """Twelve outputs of equal shape: names in a dictionary are no numbers, and the tenth number is no second one."""
    if FORMATS[name].missing:
        pytest.skip(f"{FORMATS[name].label} is not installed")
    inputs = keras.Input((4,), name="x0")
    outputs = [keras.layers.Dense(2)(inputs) for _ in range(12)]
    made = keras.Model(inputs, {f"out_{7 * k % 12}": leaf for k, leaf in enumerate(outputs)} if named else outputs)
    x = np.random.default_rng(0).random((3, 4), np.float32)
    with quiet():
        predictions = (
            writer(made, x, tmp_path).write(name, tmp_path / f"made{FORMATS[name].suffix}").predictor([x])([x])
        )
    for mine, wanted in zip(predictions, keras.tree.flatten(made(x)), strict=True):
        np.testing.assert_allclose(mine, wanted, atol=1e-3)


def test_openvino_keeps_the_loops_that_it_can_convert(tmp_path: Path) -> None:
    if FORMATS["openvino"].missing or FORMATS["onnx"].missing:
        pytest.skip("OpenVINO or ONNX Runtime is not installed")
    made = {
        name: writer(model, models.inputs_of(model), tmp_path / name)
        for name, model in (("LSTM", models.sequence(keras.layers.LSTM(4))), ("masked", models.masked()))
    }
    with quiet():
        for name, one in made.items():
            one.write("openvino", tmp_path / name / "model.xml")
    assert made["LSTM"].note("openvino") == "converted from its ONNX file"
    assert made["masked"].note("openvino") == "recurrent layers are unrolled"
    assert made["LSTM"].note("litert") == "recurrent layers are unrolled"


def test_sequence_that_is_too_long_is_refused_by_the_layer(tmp_path: Path) -> None:
    model = models.sequence(keras.layers.LSTM(2, name="memory"), steps=MOST_STEPS + 1)
    with pytest.raises(TaskError, match=f"layer memory runs over {MOST_STEPS + 1} steps"):
        writer(model, models.inputs_of(model), tmp_path).write("litert", tmp_path / "model.tflite")


def test_length_of_the_data_is_said_where_the_model_takes_any(tmp_path: Path) -> None:
    x = keras.Input((None, 3))
    model = keras.Model(x, keras.layers.Dense(2)(keras.layers.GlobalAveragePooling1D()(x)))
    made = writer(model, np.zeros((2, 7, 3), np.float32), tmp_path)
    assert made.note("litert") == "for inputs of the length of the data alone: x0 7x3"
    fixed = models.sequence(keras.layers.LSTM(2))
    assert writer(fixed, models.inputs_of(fixed), tmp_path).note("onnx") is None
    assert writer(fixed, models.inputs_of(fixed), tmp_path).note("litert") == "recurrent layers are unrolled"


@pytest.mark.parametrize("one_hot", [False, True], ids=["integers", "one-hot"])
def test_calibration_has_as_many_examples_of_each_class(one_hot: bool, tmp_path: Path) -> None:
    """Of 900 examples, 800 are of the first class; each of the three has a third, or all that there are."""
    labels = np.repeat([0, 1, 2], [800, 80, 20])
    targets = np.eye(3)[labels] if one_hot else labels
    x = np.stack([labels, labels], 1).astype(np.float32)
    inputs = keras.Input((2,))
    model = keras.Model(inputs, keras.layers.Dense(3)(inputs))
    batches = [(x[at : at + 50], targets[at : at + 50]) for at in range(0, 900, 50)]
    made = writer(model, x[:2], tmp_path, batches)
    found = np.concatenate([example["x0"] for example in made._examples()])[:, 0]
    assert [int((found == label).sum()) for label in range(3)] == [CALIBRATION_EXAMPLES // 3] * 2 + [20]
    assert made.note("litert_int8_full") == "calibrated on 152 training examples of 3 classes"


def test_weights_that_keras_cannot_quantize_are_refused(tmp_path: Path) -> None:
    inputs = keras.Input((4, 4, 1))
    model = keras.Model(inputs, keras.layers.Conv2D(2, 3)(inputs))
    made = writer(model, np.zeros((1, 4, 4, 1), np.float32), tmp_path)
    with pytest.raises(ValueError, match="Dense, EinsumDense and Embedding alone"):
        made.write("keras_int8", tmp_path / "model.keras")


def test_quantized_weights_leave_the_model_as_it_was(tmp_path: Path) -> None:
    keras.utils.set_random_seed(0)
    inputs = keras.Input((16,))
    model = keras.Model(inputs, keras.layers.Dense(8)(inputs))
    x = np.random.default_rng(0).random((3, 16), np.float32)
    before = np.asarray(model(x))
    (found,) = writer(model, x, tmp_path).write("keras_int8", tmp_path / "model.keras").predictor([x])([x])
    assert 1e-6 < np.abs(found - before).max() < 0.05
    np.testing.assert_array_equal(model(x), before)
    loaded = keras.models.load_model(tmp_path / "model.keras", compile=False)
    np.testing.assert_allclose(loaded(x), found, atol=1e-6)
