from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from stages import models
from stages.errors import ModelError
from stages.params import ModelParams

POLICIES = ["float32", "mixed_float16", "mixed_bfloat16"]
SHAPE = (32, 32, 3)


def build(name: str, shape: tuple[int, int, int] = SHAPE, classes: int = 5) -> keras.Model:
    return models.build(ModelParams(name=name), shape, classes)


def pixels(shape: tuple[int, int, int] = SHAPE) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (2, *shape), dtype=np.uint8)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", ["cnn", "resnet20"])
def test_pixels_go_in_and_probabilities_come_out(name: str, policy: str) -> None:
    keras.config.set_dtype_policy(policy)
    model = build(name)
    output = np.asarray(model(pixels()))
    assert model.input_shape == (None, *SHAPE)
    assert keras.backend.standardize_dtype(model.inputs[0].dtype) == "uint8"
    assert (output.shape, output.dtype.name) == ((2, 5), "float32")
    np.testing.assert_allclose(output.sum(axis=1), 1, rtol=1e-5)


def test_resnet50_and_an_application(monkeypatch: pytest.MonkeyPatch) -> None:
    keras.config.set_dtype_policy("mixed_bfloat16")
    for name, millions in (("resnet50", 23.6), ("keras.applications.MobileNetV2", 2.26)):
        model = build(name)
        assert model.count_params() / 1e6 == pytest.approx(millions, rel=0.01)
        assert model.output_shape == (None, 5)
        assert model.dtype_policy.name == "mixed_bfloat16"
        norms = [layer for layer in model._flatten_layers() if isinstance(layer, keras.layers.BatchNormalization)]
        assert {layer.momentum for layer in norms} == {0.9}


def test_an_application_sees_pixels_scaled_once() -> None:
    """EfficientNet divides by 255 itself unless told not to; MobileNetV3 rescales to -1 … 1."""
    for name in ("keras.applications.MobileNetV3Small",):
        inner = [layer for layer in build(name)._flatten_layers() if isinstance(layer, keras.layers.Rescaling)]
        assert [layer.name for layer in inner] == ["scale"]


def test_resnet20_has_the_papers_number_of_parameters() -> None:
    assert build("resnet20", classes=10).count_params() == pytest.approx(0.27e6, rel=0.03)


def test_the_cnn_has_the_number_of_parameters_that_it_says() -> None:
    assert build("cnn", classes=10).count_params() == 11_330


@pytest.mark.parametrize("shape", [(8, 8, 3), (33, 33, 1)])
def test_small_odd_and_grey_images(shape: tuple[int, int, int]) -> None:
    for name in ("cnn", "resnet20"):
        assert np.asarray(build(name, shape)(pixels(shape))).shape == (2, 5)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Writes a module of the user's own beside `params.yaml` and returns the name of its model."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def write(source: str) -> str:
        name = f"own_{tmp_path.name.strip('_')}"
        (tmp_path / f"{name}.py").write_text(f"import keras\n\n\ndef build(input_shape, classes):\n    {source}\n")
        return f"{name}:build"

    return write


INPUT = "x = keras.Input(input_shape, dtype='uint8'); y = keras.layers.Flatten()(keras.layers.Rescaling(1 / 255)(x)); "
OWN = INPUT + "return keras.Model(x, keras.layers.Dense({units}, activation='softmax', dtype='float32')(y))"


def test_ones_own_model(own: Callable[[str], str]) -> None:
    model = build(own(OWN.format(units="classes")), (8, 8, 3))
    assert model.output_shape == (None, 5)


@pytest.mark.parametrize(
    ("source", "fragment"),
    [
        (OWN.format(units="7"), r"gives an output of shape \(None, 7\); it must be \(None, 5\)"),
        ("return 3", "gave int; it must return a keras.Model"),
        ("return keras.Sequential([keras.layers.Dense(classes)])", "is not built; begin it with keras.Input"),
        ("raise RuntimeError('first line\\nsecond line')", "cannot be built: first line second line"),
        ("import no_such_module", "cannot be built: No module named 'no_such_module'"),
        (OWN.format(units="classes").replace("input_shape", "(9, 9, 3)"), r"takes images of shape \(9, 9, 3\)"),
    ],
)
def test_ones_own_model_that_does_not_fit(own: Callable[[str], str], source: str, fragment: str) -> None:
    name = own(source)
    with pytest.raises(ModelError, match=fragment) as caught:
        build(name, (8, 8, 3))
    assert str(caught.value).startswith(f"model.name = {name}, on images of 8 x 8 x 3 (data.image_size = 8),")
    assert "\n" not in str(caught.value)


def test_images_too_small_for_an_application() -> None:
    with pytest.raises(ModelError, match=r"data.image_size = 32\), cannot be built: .*71") as caught:
        build("keras.applications.Xception")
    assert "\n" not in str(caught.value)


def test_a_saved_model_loads_in_plain_keras(tmp_path: Path) -> None:
    keras.config.set_dtype_policy("mixed_float16")
    model = build("cnn", (8, 8, 3))
    model.save(tmp_path / "model.keras")
    np.save(tmp_path / "pixels.npy", pixels((8, 8, 3)))
    keras.config.set_dtype_policy("float32")
    code = """
import keras, numpy
try:
    import stages
    raise SystemExit("this code is importable")
except ImportError:
    pass
model = keras.saving.load_model("model.keras")
numpy.save("probabilities.npy", model.predict(numpy.load("pixels.npy"), verbose=0))
"""
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done: Any = subprocess.run(
        [sys.executable, "-P", "-c", code], cwd=tmp_path, env=variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(np.load(tmp_path / "probabilities.npy"), model(pixels((8, 8, 3))), atol=1e-3)
