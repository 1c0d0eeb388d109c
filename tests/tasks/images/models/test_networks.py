from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np
import pytest

from halfstep.errors import ModelError
from halfstep.params.schema import ModelParams
from halfstep.tasks import user_code
from halfstep.tasks.images import models
from halfstep.tasks.images.models import checks

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


@pytest.mark.parametrize("shape", [(8, 8, 3), (33, 33, 1)])
def test_small_odd_and_grey_images_are_supported(shape: tuple[int, int, int]) -> None:
    for name in ("cnn", "resnet20"):
        assert np.asarray(build(name, shape)(pixels(shape))).shape == (2, 5)


@pytest.fixture
def user_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Writes a user's module to the folder of `params.yaml` and returns the name of its model."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def write(source: str, before: str = "") -> str:
        name = f"user_{tmp_path.name.strip('_')}"
        text = f"import keras\n\n{before}\n\ndef build(input_shape, classes):\n    {source}\n"
        (tmp_path / f"{name}.py").write_text(text)
        return f"{name}:build"

    return write


INPUT = "x = keras.Input(input_shape, dtype='uint8'); y = keras.layers.Flatten()(keras.layers.Rescaling(1 / 255)(x)); "
USER_MODEL = INPUT + "return keras.Model(x, keras.layers.Dense({units}, activation='softmax', dtype='float32')(y))"


@pytest.mark.parametrize("policy", POLICIES)
def test_check_of_the_output_changes_no_variable(user_model: Callable[..., str], policy: str) -> None:
    """Each random layer keeps its seed, and batch normalization its moving averages."""
    keras.config.set_dtype_policy(policy)
    name = user_model(
        "x = keras.Input(input_shape, dtype='uint8'); y = keras.layers.Rescaling(1 / 255)(x); "
        "y = keras.layers.BatchNormalization()(keras.layers.GaussianNoise(0.1)(y)); y = Always()(y); "
        "y = keras.layers.Dense(classes)(keras.layers.Dropout(0.5)(keras.layers.Flatten()(y))); "
        "return keras.Model(x, keras.layers.Softmax(dtype='float32')(y))",
        ALWAYS_RANDOM,
    )
    states = []
    for check in (checks.output_problem, lambda *_: None):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(checks, "output_problem", check)
            keras.utils.set_random_seed(3)
            model = build(name, (8, 8, 3))
        states.append([np.asarray(keras.ops.convert_to_numpy(variable)) for variable in model.variables])
        states[-1].append(np.asarray(model(pixels((8, 8, 3)), training=True)))
        states[-1].append(np.asarray(keras.random.normal((3,))))
    for checked, unchecked in zip(*states, strict=True):
        np.testing.assert_array_equal(checked, unchecked)


ALWAYS_RANDOM = """
class Always(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.seed = keras.random.SeedGenerator(1)

    def call(self, inputs):
        return inputs + keras.ops.cast(keras.random.normal((1,), seed=self.seed) * 0.1, inputs.dtype)
"""
LOGITS = INPUT + "y = keras.layers.Dense(classes, dtype='float32', {options})(y); return keras.Model(x, y)"
GOOD = USER_MODEL.format(units="classes")
SUBCLASS = """
class Own(keras.Model):
    def __init__(self, classes):
        super().__init__()
        self.flatten, self.dense = keras.layers.Flatten(), keras.layers.Dense(classes, activation="softmax")

    def call(self, inputs):
        return self.dense(self.flatten(keras.ops.cast(inputs, "float32") / 255))


class Unsaved(keras.layers.Layer):
    def __init__(self, function):
        super().__init__()

    def call(self, inputs):
        return inputs


class Failing(keras.layers.Layer):
    def call(self, inputs):
        if hasattr(inputs, "numpy"):
            raise ValueError("not with these values")
        return inputs


class Silent(Exception):
    def __str__(self):
        raise RuntimeError
"""


@pytest.mark.parametrize(
    ("source", "fragment"),
    [
        (USER_MODEL.format(units="7"), r"has an output of shape \(None, 7\); it must be \(None, 5\)"),
        ("return 3", "returned int; it must return a keras.Model"),
        ("return None", "returned NoneType; it must return a keras.Model"),
        ("return keras.Model", "returned the class Model; it must return a keras.Model"),
        ("return keras.Sequential([keras.layers.Dense(classes)])", "is not built; start it with keras.Input"),
        ("raise RuntimeError('first line\\nsecond line')", r"cannot be built: first line second line \(.*, line "),
        ("raise RuntimeError('a\\x1b[31mb\\r\\x00')", r"cannot be built: ab \\x00 \("),
        ("raise Silent", r"cannot be built: Silent \("),
        ("raise KeyError('width')", "cannot be built: KeyError: 'width'"),
        ("import no_such_module", "cannot be built: No module named 'no_such_module'"),
        ("import sys; sys.exit(0)", r"cannot be built: it raised SystemExit\(0\) \(.*, line "),
        ("raise SystemExit", r"cannot be built: it raised SystemExit\(\)"),
        ("raise KeyboardInterrupt", r"cannot be built: it raised KeyboardInterrupt\(\)"),
        ("raise GeneratorExit", "cannot be built: GeneratorExit"),
        ("return Own(classes)", "is the subclassed model Own, which plain Keras cannot load; return keras.Model"),
        ("m = Own(classes); m.build((None, *input_shape)); return m", "is the subclassed model Own"),
        ("m = Own(classes); m(keras.ops.zeros((1, *input_shape))); return m", "is the subclassed model Own"),
        (GOOD.replace("return ", "m = ") + "; m.compile('sgd', 'mse'); return m", "is already compiled; remove comp"),
        (GOOD.replace("keras.Model(x, ", "keras.Model([x, keras.Input((1,))], "), "has 2 inputs; it must have 1"),
        (INPUT + "d = keras.layers.Dense(classes)(y); return keras.Model(x, [d, d])", "has 2 outputs; it must have 1"),
        (GOOD.replace("keras.Model(x, ", "keras.Model(x, {'p': ")[:-1] + "})", "returns its output in a dict"),
        (GOOD.replace("'uint8'", "'float32'"), "takes float32; it must take uint8"),
        (GOOD.replace("input_shape", "(9, 9, 3)"), r"takes images of shape \(9, 9, 3\)"),
        (GOOD.replace("input_shape,", "(None, None, 3),"), "cannot be built|takes images of shape"),
        (INPUT + "return keras.Model(x, keras.layers.Softmax()(y[:, :classes]))", "has no trainable weights"),
        (LOGITS.format(options=""), "returns rows that sum to .*Activation\\('softmax', dtype='float32'\\)"),
        (LOGITS.format(options="kernel_initializer='zeros'"), "returns rows that sum to 0 to 0"),
        (LOGITS.format(options="activation='sigmoid'"), "returns rows that sum to"),
        (LOGITS.format(options="activation='log_softmax'"), "returns rows that sum to -.*; it must return probab"),
        (
            GOOD.replace("(y))", "(Unsaved(len)(y)))"),
            "cannot be saved: Object Unsaved was created by passing non-serial",
        ),
        (GOOD.replace("(y))", "(Failing()(y)))"), r"fails on random images: .*not with these values.* \(.*, line "),
        (GOOD.replace("1 / 255", "float('nan')"), "returns values that are not finite for random images; check"),
    ],
)
def test_unusable_model_of_the_user_is_refused(user_model: Callable[..., str], source: str, fragment: str) -> None:
    name = user_model(source, SUBCLASS)
    with pytest.raises(ModelError, match=fragment) as caught:
        build(name, (8, 8, 3))
    assert str(caught.value).startswith(f"model.name = {name}, on images of 8 x 8 x 3 (data.image_size = 8),")
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("definition", "fragment"),
    [
        ("build = 3", "is not a callable object"),
        ("build = lambda shape: None", r"must be build\(input_shape, classes\)"),
        ("def build(*, shape, classes): ...", r"build\(\*, shape, classes\) must be build\(input_shape, classes\)"),
        ("raise SystemExit(0)", r"it raised SystemExit\(0\)"),
        ("raise OSError('no\\n weights:\\x1b[2J http://user:s3cret@host')", r": no weights:\\x1b\[2J http://host \("),
        ("import os", "has no attribute 'build'"),
    ],
)
def test_unusable_function_of_the_user_is_refused(
    tmp_path: Path, user_model: Callable[..., str], definition: str, fragment: str
) -> None:
    name = user_model("")
    (tmp_path / f"{name.partition(':')[0]}.py").write_text(definition)
    with pytest.raises(ModelError, match=fragment):
        build(name, (8, 8, 3))


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_softmax_in_16_bits_and_its_overflow_are_not_refused(user_model: Callable[..., str], policy: str) -> None:
    """Whether the precision is good enough is what the training finds out."""
    keras.config.set_dtype_policy(policy)
    softmax = "y = keras.layers.Softmax()(keras.layers.Dense(classes)(y * {scale})); "
    end = "return keras.Model(x, keras.layers.Activation('linear', dtype='float32')(y))"
    for scale in ("1", "float('inf')"):
        name = user_model(INPUT + softmax.format(scale=scale) + end)
        sys.modules.pop(name.partition(":")[0], None)
        assert build(name, (8, 8, 3), classes=100).output_shape == (None, 100)


def test_signal_during_the_function_is_not_an_error_of_the_model(user_model: Callable[..., str]) -> None:
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    of_ctrl_c = signal.getsignal(signal.SIGINT)
    try:
        name = user_model("import os, signal, time; os.kill(os.getpid(), signal.SIGTERM); time.sleep(5)")
        with pytest.raises(SystemExit, match="143"):
            build(name, (8, 8, 3))
        name = user_model("import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(5)")
        sys.modules.pop(name.partition(":")[0], None)
        with pytest.raises(KeyboardInterrupt):
            build(name, (8, 8, 3))
        assert signal.getsignal(signal.SIGINT) is of_ctrl_c
    finally:
        signal.signal(signal.SIGTERM, before)


def test_slow_function_is_named(
    user_model: Callable[..., str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(user_code, "SLOW_S", 0.2)
    name = user_model("import time; time.sleep(1); " + GOOD)
    build(name, (8, 8, 3))
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) > 1
    assert all(line.startswith(f"model.name = {name}, on images of") for line in lines)
    assert "has taken 0 s so far" in lines[0]
