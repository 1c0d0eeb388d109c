"""Trained weights are exported in float32, bit for bit, and predict as Keras does."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import keras
import numpy as np
import pytest

from halfstep.errors import HalfstepError, TaskError
from halfstep.params.schema import DataParams, ModelParams, TaskParams, TrainParams, Variant
from halfstep.prepare.images.pipeline import prepare
from halfstep.results.serving import Export, outputs_file
from halfstep.results.training import MODEL, correct
from halfstep.serve.exporting import _reason, export
from halfstep.serve.records import INPUTS, Exported, Request
from halfstep.serve.worker import load
from halfstep.serve.writing import Writer
from halfstep.stats.scores import score_change
from halfstep.system import files
from halfstep.tasks import building
from halfstep.tasks.trial import Trial
from halfstep.words.formats import FORMATS

FLOAT32 = Variant(policy="float32")
LITERT = ("litert", "litert_float16", "litert_int8", "litert_int8_full")
MODELS = """
import keras

def own_type(shape, classes):
    pixels = keras.Input(shape, dtype="uint8")
    hidden = keras.layers.Dense(4, dtype="mixed_bfloat16", name="narrow")(keras.layers.Flatten()(pixels))
    return keras.Model(pixels, keras.layers.Dense(classes, activation="softmax", dtype="float32")(hidden))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, prepared_template: Path) -> Path:
    """A working folder with prepared images."""
    root = tmp_path_factory.mktemp("serve")
    shutil.copytree(prepared_template, root / files.PREPARED)
    (root / "halfstep_served_models.py").write_text(MODELS)
    return root


@pytest.fixture(autouse=True)
def in_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))


def trial(model: str = "cnn", name: str = "float32", seed: int = 0) -> Trial:
    return Trial(TaskParams(), ModelParams(name=model), TrainParams(batch_size=8), FLOAT32, seed, name=name)


def trained(folder: Path, policy: str, seed: int = 0) -> Path:
    """The folder of a training, of which only the model matters: it has other weights than a new one."""
    made = building.build(replace(trial(seed=seed + 7), variant=Variant(policy=policy))).model
    target = folder / f"trained-{policy}"
    target.mkdir(exist_ok=True)
    made.save(target / MODEL)
    files.write_manifest(target)
    return target


def request(folder: Path, target: Path, policy: str, formats: tuple[str, ...]) -> Request:
    target.mkdir(parents=True)
    return Request(
        trained=trained(folder, policy),
        folder=target,
        formats=formats,
        examples=3,
    )


@pytest.fixture(scope="module")
def exported(folder: Path) -> dict[str, tuple[Exported, Path]]:
    """A training in float32 in all formats of LiteRT, and one in mixed_bfloat16."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        exports = {}
        for policy, formats in {"float32": ("saved_model", *LITERT), "mixed_bfloat16": ("litert",)}.items():
            asked = request(folder, folder / "out" / policy, policy, formats)
            exports[policy] = export(trial(name=policy), asked), asked.folder
        return exports


def by_format(exported: Mapping[str, tuple[Exported, Path]], policy: str) -> dict[str, Export]:
    return {item.format: item for item in exported[policy][0].exports}


def test_files_of_all_formats_are_written(exported: dict[str, tuple[Exported, Path]]) -> None:
    exports, target = by_format(exported, "float32"), exported["float32"][1]
    assert [item.refusal for item in exports.values()] == [None] * 5
    for name, item in exports.items():
        assert (target / str(item.file)).exists(), name
        assert item.file == f"models/{name}/model{FORMATS[name].suffix}"
        assert item.kib is not None
        assert item.export_s is not None
    assert exports["litert_int8"].kib < exports["litert"].kib  # type: ignore[operator]


def test_float32_predicts_as_keras_and_integers_differ(exported: dict[str, tuple[Exported, Path]]) -> None:
    differences = {name: item.difference for name, item in by_format(exported, "float32").items()}
    assert differences["saved_model"] < 1e-5  # type: ignore[operator]
    assert differences["litert"] < 1e-5  # type: ignore[operator]
    for name in ("litert_float16", "litert_int8", "litert_int8_full"):
        assert 1e-7 < differences[name] < 0.1, name  # type: ignore[operator]


def test_weights_are_those_of_the_training_and_not_new_ones(
    folder: Path, exported: dict[str, tuple[Exported, Path]]
) -> None:
    _, target = exported["float32"]
    saved = keras.models.load_model(folder / "trained-float32" / MODEL)
    pixels = np.load(files.PREPARED / "test_images.npy")
    expected = np.asarray(saved(pixels, training=False))
    np.testing.assert_allclose(np.load(target / outputs_file(0, "litert")), expected, atol=1e-5)


def test_what_was_trained_in_16_bits_is_exported_in_float32(exported: dict[str, tuple[Exported, Path]]) -> None:
    (item,) = exported["mixed_bfloat16"][0].exports
    assert item.refusal is None
    assert item.difference < 1e-5  # type: ignore[operator]


def test_runtime_takes_batches_of_any_size(exported: dict[str, tuple[Exported, Path]]) -> None:
    record, target = exported["float32"]
    with np.load(target / INPUTS) as stored:
        inputs = [stored[name] for name in stored.files]
    assert [array.shape for array in inputs] == [(3, 8, 8, 3)]
    for item in record.exports:
        runtime = load(item.format, target / str(item.file))
        for size in (1, 5, 1):
            given = [np.resize(inputs[0], (size, 8, 8, 3))]
            (outputs,) = runtime.predictor(given)(given)
            assert outputs.shape == (size, 4)
            assert outputs.dtype == np.float32


@pytest.mark.slow
def test_ranges_of_int8_from_other_data_than_those_of_the_training_cost_quality_beyond_the_margin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Noise that is darker than the digits: the brighter pixels are cut off. The margin is a percentage point."""
    monkeypatch.chdir(tmp_path)
    prepare(DataParams(image_size=16), files.PREPARED)
    task = building.ready(trial())
    pixels, labels = (np.load(files.PREPARED / f"train_{name}.npy") for name in ("images", "labels"))
    task.model.compile("adam", "sparse_categorical_crossentropy")
    task.model.fit(pixels, labels, epochs=12, batch_size=32, verbose=0)
    trained = tmp_path / "trained"
    trained.mkdir()
    task.model.save(trained / MODEL)
    files.write_manifest(trained)
    true = np.load(files.PREPARED / "test_labels.npy")

    def outcome(target: Path) -> str:
        target.mkdir()
        asked = Request(trained, target, ("saved_model", "litert_int8_full"), 3)
        assert [item.refusal for item in export(trial(), asked).exports] == [None, None]
        scores = [correct(np.load(target / outputs_file(0, name)), true)[None] for name in asked.formats]
        assert scores[0].mean() > 0.9
        return score_change(*scores).outcome(0.01)

    assert outcome(tmp_path / "training data") == "shown"
    noise = np.random.default_rng(0).integers(0, 4, (200, *pixels.shape[1:]), dtype=np.uint8)
    monkeypatch.setattr(Writer, "_examples", lambda _: iter([{"x0": image[None]} for image in noise]))
    assert outcome(tmp_path / "dark noise") == "refuted"


def test_layer_with_a_type_of_its_own_is_refused_by_its_name(folder: Path) -> None:
    asked = replace(request(folder, folder / "own", "float32", ("litert",)), trained=None)
    with pytest.raises(HalfstepError, match=r"narrow \(bfloat16\)"):
        export(trial("halfstep_served_models:own_type"), asked)


def test_weights_that_are_not_loaded_are_noticed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = request(folder, folder / "other", "float32", ("litert",))
    monkeypatch.setattr(keras.Model, "load_weights", lambda *_: None)
    with pytest.raises(TaskError, match="kernel differs from what was trained"):
        export(trial(), asked)


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (
            "Could not translate MLIR to FlatBuffer.<unknown>:0: error: loc(x): 'tf.Mul' op is neither a custom op nor "
            "a flex op\n<unknown>:0: error: loc(y): 'tf.Conv2D' op is neither a custom op nor a flex op",
            "it has no operation for Mul, Conv2D in these types",
        ),
        (
            "[ONNXRuntimeError] : 1 : FAIL : Load model from /tmp/x/onnx.onnx failed:Type Error: Type parameter (T) of "
            "Optype (Mul) bound to different types (tensor(float16) and tensor(bfloat16) in node (a/mul).",
            "Type parameter (T) of Optype (Mul) bound to different types (tensor(float16) and tensor(bfloat16) in node "
            "(a/mul).",
        ),
        (
            "Exception from src/inference/src/cpp/core.cpp:132:\nCheck 'newNode' failed at src/plugins/node.cpp:1626:\n"
            "Unsupported operation of type: Convert name: Convert_863\nDetails:\n",
            "Unsupported operation of type: Convert name: Convert_863",
        ),
        ("the model has never been called\nmore", "the model has never been called"),
        ("", "RuntimeError"),
    ],
    ids=["LiteRT", "ONNX Runtime", "OpenVINO", "another", "nothing"],
)
def test_reason_of_a_runtime_is_one_line_without_its_places(message: str, said: str) -> None:
    inputs = keras.Input((2,))
    model = keras.Model(inputs, keras.layers.Dense(1, name="last")(inputs))
    assert _reason(RuntimeError(message), model) == said
