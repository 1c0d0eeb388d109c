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
def test_network_maps_pixels_to_probabilities(name: str, policy: str) -> None:
    keras.config.set_dtype_policy(policy)
    model = build(name)
    output = np.asarray(model(pixels()))
    assert model.input_shape == (None, *SHAPE)
    assert keras.backend.standardize_dtype(model.inputs[0].dtype) == "uint8"
    assert (output.shape, output.dtype.name) == ((2, 5), "float32")
    np.testing.assert_allclose(output.sum(axis=1), 1, rtol=1e-5)


def test_resnet50_and_an_application_have_their_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    keras.config.set_dtype_policy("mixed_bfloat16")
    for name, millions in (("resnet50", 23.6), ("keras.applications.MobileNetV2", 2.26)):
        model = build(name)
        assert model.count_params() / 1e6 == pytest.approx(millions, rel=0.01)
        assert model.output_shape == (None, 5)
        assert model.dtype_policy.name == "mixed_bfloat16"
        norms = [layer for layer in model._flatten_layers() if isinstance(layer, keras.layers.BatchNormalization)]
        assert {layer.momentum for layer in norms} == {0.9}


def test_application_does_not_scale_the_pixels_again() -> None:
    """By default, MobileNetV3 contains a layer that scales to [-1, 1]."""
    layers = build("keras.applications.MobileNetV3Small")._flatten_layers()
    assert [layer.name for layer in layers if isinstance(layer, keras.layers.Rescaling)] == ["scale"]


def test_resnet20_has_as_many_parameters_as_in_the_paper() -> None:
    assert build("resnet20", classes=10).count_params() == pytest.approx(0.27e6, rel=0.03)


def test_cnn_has_as_many_parameters_as_documented() -> None:
    assert build("cnn", classes=10).count_params() == 11_330


@pytest.mark.parametrize("shape", [(8, 8, 3), (33, 33, 1)])
def test_small_odd_and_grey_images_are_supported(shape: tuple[int, int, int]) -> None:
    for name in ("cnn", "resnet20"):
        assert np.asarray(build(name, shape)(pixels(shape))).shape == (2, 5)


@pytest.fixture
def user_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Writes a user's module to the folder of `params.yaml` and returns the name of its model."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def write(source: str) -> str:
        name = f"user_{tmp_path.name.strip('_')}"
        (tmp_path / f"{name}.py").write_text(f"import keras\n\n\ndef build(input_shape, classes):\n    {source}\n")
        return f"{name}:build"

    return write


INPUT = "x = keras.Input(input_shape, dtype='uint8'); y = keras.layers.Flatten()(keras.layers.Rescaling(1 / 255)(x)); "
USER_MODEL = INPUT + "return keras.Model(x, keras.layers.Dense({units}, activation='softmax', dtype='float32')(y))"


def test_users_model_is_built(user_model: Callable[[str], str]) -> None:
    model = build(user_model(USER_MODEL.format(units="classes")), (8, 8, 3))
    assert model.output_shape == (None, 5)


@pytest.mark.parametrize(
    ("source", "fragment"),
    [
        (USER_MODEL.format(units="7"), r"has an output of shape \(None, 7\); it must be \(None, 5\)"),
        ("return 3", "returned int; it must return a keras.Model"),
        ("return keras.Sequential([keras.layers.Dense(classes)])", "is not built; start it with keras.Input"),
        ("raise RuntimeError('first line\\nsecond line')", "cannot be built: first line second line"),
        ("import no_such_module", "cannot be built: No module named 'no_such_module'"),
        (USER_MODEL.format(units="classes").replace("input_shape", "(9, 9, 3)"), r"takes images of shape \(9, 9, 3\)"),
    ],
)
def test_unusable_model_of_the_user_is_refused(user_model: Callable[[str], str], source: str, fragment: str) -> None:
    name = user_model(source)
    with pytest.raises(ModelError, match=fragment) as caught:
        build(name, (8, 8, 3))
    assert str(caught.value).startswith(f"model.name = {name}, on images of 8 x 8 x 3 (data.image_size = 8),")
    assert "\n" not in str(caught.value)


def test_images_that_are_too_small_for_an_application_are_refused() -> None:
    with pytest.raises(ModelError, match=r"data.image_size = 32\), cannot be built: .*71") as caught:
        build("keras.applications.Xception")
    assert "\n" not in str(caught.value)


def test_saved_model_loads_in_plain_keras(tmp_path: Path) -> None:
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
