"""The folder of a format says how its file is loaded and called: the lines are run."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from halfstep.results.serving import Export, Served, ServedArm, Tensor
from halfstep.results.task import TASK_INFO
from halfstep.serve.taking import README, lines_to_load, write_folders
from halfstep.system.quiet import quiet
from halfstep.words.formats import FORMATS
from tests.serve.models import dictionary, inputs_of
from tests.serve.test_writing import writer

INPUTS = tuple(Tensor(name=f"x{number}", dtype="float32", shape=(8,)) for number in range(2))


@pytest.mark.parametrize("threads", [None, 1], ids=["default", "1 thread"])
@pytest.mark.parametrize("name", ["saved_model", "litert", "onnx", "openvino"])
def test_lines_predict_as_keras_does(
    name: str, threads: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if FORMATS[name].missing:
        pytest.skip(f"{FORMATS[name].label} is not installed")
    monkeypatch.chdir(tmp_path)
    model = dictionary()
    inputs = {key: array[:1] for key, array in inputs_of(model).items()}
    x0, x1 = keras.tree.flatten(inputs)
    file = f"model{FORMATS[name].suffix}"
    known = {"x0": x0, "x1": x1, "tf": tf}
    with quiet():
        writer(model, inputs, tmp_path / "scratch").write(name, tmp_path / file)
        lines = lines_to_load(name, file, INPUTS, threads).partition("\n\n")[0]
        exec("\n".join(line.removeprefix("    ") for line in lines.splitlines()), known)
    outputs = known["outputs"]
    found = [np.asarray(one) for one in (outputs.values() if isinstance(outputs, dict) else outputs)]
    wanted = [np.asarray(leaf) for leaf in keras.tree.flatten(model(inputs))]
    for expected in wanted:  # their order is that of the file
        assert any(np.allclose(one, expected, atol=1e-5) for one in found)
    assert ("1" in lines_to_load(name, "", (), threads)) or threads is None or name == "saved_model"


def test_folder_has_what_people_need(prepared_template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    TASK_INFO.parent.mkdir(parents=True)
    TASK_INFO.write_bytes((prepared_template / TASK_INFO.name).read_bytes())
    (tmp_path / "models/litert").mkdir(parents=True)
    export = Export(
        variant="float32", seed=0, format="litert", file="models/litert/model.tflite", kib=48.0, sha256="e" * 64
    )
    pixels, classes = (
        Tensor(name="x0", dtype="uint8", shape=(8, 8, 3)),
        Tensor(name="output_0", dtype="float32", shape=(4,)),
    )
    served = Served(
        exports=(export, Export(variant="float32", seed=0, format="onnx", refusal="no")),
        arms=(ServedArm(format="litert"), ServedArm(format="litert", threads=2)),
        inputs=(pixels,),
        outputs=(classes,),
    )
    write_folders(served, tmp_path)
    text = (tmp_path / "models/litert" / README).read_text()
    for part in (
        f"`model.tflite`: 48 KiB, sha256 `{'e' * 64}`",
        "- input `x0`: uint8, (examples, 8, 8, 3)",
        "- output `output_0`: float32, (examples, 4)",
        "pixels from 0 to 255",
        'Interpreter("model.tflite")',
        'Interpreter("model.tflite", num_threads=2)',
    ):
        assert part in text
    assert (tmp_path / "models/litert/bench.py").read_text().startswith('"""Times a model file')
    assert not (tmp_path / "models/onnx").exists()
