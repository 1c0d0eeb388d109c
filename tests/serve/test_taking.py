"""The folder of a format says how its file is loaded and called: the lines are run."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from halfstep.results.serving import Export, Served, ServedArm, Tensor
from halfstep.results.task import TASK_INFO
from halfstep.serve.taking import README, write_folders
from halfstep.system.quiet import quiet
from halfstep.words.formats import FORMATS
from tests.serve.models import dictionary, inputs_of
from tests.serve.test_writing import writer

INPUTS = tuple(Tensor(name=f"x{number}", dtype="float32", shape=(8,)) for number in range(2))


def taken(folder: Path, prepared: Path, name: str, arms: tuple[ServedArm, ...], inputs: tuple[Tensor, ...]) -> str:
    """Writes the folder of a format, and returns its README."""
    TASK_INFO.parent.mkdir(parents=True, exist_ok=True)
    TASK_INFO.write_bytes((prepared / TASK_INFO.name).read_bytes())
    file = f"models/{name}/model{FORMATS[name].suffix}"
    (folder / file).parent.mkdir(parents=True, exist_ok=True)
    export = Export(variant="float32", seed=0, format=name, file=file, kib=48.0, sha256="e" * 64)
    refused = Export(variant="float32", seed=0, format="keras_int8", refusal="no")
    classes = Tensor(name="output_0", dtype="float32", shape=(4,))
    write_folders(Served(exports=(export, refused), arms=arms, inputs=inputs, outputs=(classes,)), folder)
    return (folder / "models" / name / README).read_text()


@pytest.mark.parametrize("threads", [None, 1], ids=["default", "1 thread"])
@pytest.mark.parametrize("name", ["saved_model", "litert", "onnx", "openvino", "openvino_bfloat16"])
def test_lines_predict_as_keras_does(
    name: str, threads: int | None, prepared_template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if FORMATS[name].missing:
        pytest.skip(f"{FORMATS[name].label} is not installed")
    monkeypatch.chdir(tmp_path)
    model, file_format = dictionary(), FORMATS[name].file_of or name
    inputs = {key: array[:1] for key, array in inputs_of(model).items()}
    x0, x1 = keras.tree.flatten(inputs)
    text = taken(tmp_path, prepared_template, file_format, (ServedArm(format=name, threads=threads),), INPUTS)
    lines = [line.removeprefix("    ") for line in text.splitlines() if line[:4] == "    "]
    known = {"x0": x0, "x1": x1, "tf": tf}
    with quiet():
        folder = tmp_path / "models" / file_format
        writer(model, inputs, tmp_path / "scratch").write(file_format, folder / f"model{FORMATS[name].suffix}")
        monkeypatch.chdir(folder)
        exec("\n".join(lines), known)
    outputs = known["outputs"]
    found = [np.asarray(one) for one in (outputs.values() if isinstance(outputs, dict) else outputs)]
    wanted = [np.asarray(leaf) for leaf in keras.tree.flatten(model(inputs))]
    for expected in wanted:  # their order is that of the file
        assert any(np.allclose(one, expected, atol=0.1 if "bfloat16" in name else 1e-5) for one in found)
    assert ("threads" in "".join(lines).lower()) == (threads is not None) or name == "saved_model"


def test_folder_has_what_people_need(prepared_template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pixels = Tensor(name="x0", dtype="uint8", shape=(8, 8, 3))
    arms = (ServedArm(format="litert"), ServedArm(format="litert", threads=2))
    text = taken(tmp_path, prepared_template, "litert", arms, (pixels,))
    for part in (
        "# LiteRT of float32, seed 0\n\n",
        f"`model.tflite`: 48 KiB, sha256 `{'e' * 64}`\n",
        "\n- input `x0`: uint8, (examples, 8, 8, 3)\n- output `output_0`: float32, (examples, 4)\n\nThe inputs",
        "\nLiteRT:\n\n    from ai_edge_litert",
        'Interpreter("model.tflite")\n',
        "\n\nLiteRT, 2 threads:\n\n",
        'Interpreter("model.tflite", num_threads=2)',
        "In Kotlin",
    ):
        assert part in text
    assert "\n\n\n" not in text
    assert (tmp_path / "models/litert/bench.py").read_text().startswith('"""Times a model file')
    assert not (tmp_path / "models/keras_int8").exists()
