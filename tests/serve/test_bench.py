"""Files are timed by a program that needs NumPy and the runtime alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from halfstep.machine import fingerprint
from halfstep.results.serving import Export
from halfstep.serve import bench
from halfstep.serve.alone import THROUGHPUT_SIZES, Program, arms_of, with_throughput
from halfstep.words.formats import FORMATS
from tests.serve.models import gelu, inputs_of
from tests.serve.test_writing import writer

TIMED = ("litert", "onnx", "openvino")
# In the program's process nothing else can be imported of what is beside them.
ALONE = """
import runpy, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"tensorflow", "keras", "halfstep", "pandas", "pydantic", "scipy", "mlflow"}:
            raise ModuleNotFoundError(f"no {name} here", name=name)

sys.meta_path.insert(0, Absent())
program = sys.argv.pop(1)
sys.argv[0] = program
runpy.run_path(program, run_name="__main__")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model in each format, with inputs."""
    root = tmp_path_factory.mktemp("bench")
    model = gelu()
    inputs = inputs_of(model)
    np.savez(root / "inputs.npz", np.resize(inputs, (64, 6)))
    made = writer(model, inputs, root / "scratch")
    for name in (*TIMED, "saved_model"):
        if not FORMATS[name].missing:
            made.write(name, root / name / f"model{FORMATS[name].suffix}")
    return root


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", ALONE, bench.__file__, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


def file_of(folder: Path, name: str) -> Path:
    if FORMATS[name].missing:
        pytest.skip(f"{FORMATS[name].label} is not installed")
    return folder / name / f"model{FORMATS[name].suffix}"


@pytest.mark.parametrize("name", TIMED)
def test_file_is_timed_without_tensorflow(name: str, folder: Path) -> None:
    ended = run(file_of(folder, name), "--threads", 1, "--batch", 1, 8, "--seconds", 0.02, "--json")
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
    found: dict[str, Any] = json.loads(ended.stdout)
    assert found["threads"] == 1
    assert 20 < found["memory_mib"] < 400
    assert found["load_ms"] > 1
    assert [item["batch_size"] for item in found["batches"]] == [1, 8]
    for item in found["batches"]:
        assert item["calls"] >= bench.FEWEST_CALLS
        assert 0 < item["p10_ms"] <= item["p50_ms"] <= item["p99_ms"]


def test_text_has_the_first_call_the_percentiles_and_the_memory(folder: Path) -> None:
    ended = run(file_of(folder, "litert"), "--seconds", 0.02)
    first, second = ended.stdout.splitlines()
    assert first.startswith("threads default, float32: load ")
    assert " MiB" in first
    assert second.startswith("batch 1: first call ")
    assert "p50 " in second
    assert "p99 " in second


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["missing.tflite"], "missing.tflite: missing.tflite: no model file; allowed are .tflite, .onnx, .xml and"),
        (["inputs.npz"], "inputs.npz: inputs.npz: no model file"),
    ],
    ids=["missing", "another file"],
)
def test_file_that_is_no_model_is_one_line(
    arguments: list[str], said: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    ended = run(*arguments)
    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()
    assert line.startswith(said)


def test_open_length_needs_inputs(tmp_path: Path) -> None:
    inputs = keras.Input((None, 3))
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.GlobalAveragePooling1D()(inputs)))
    model.export(tmp_path / "model", verbose=False)
    with pytest.raises(ValueError, match=r"give its examples with --inputs FILE\.npz"):
        bench.measure(tmp_path / "model", None, None, [1], None)


def test_inputs_of_the_ring_differ_and_have_the_batch_size() -> None:
    rows = np.arange(100.0).reshape(100, 1)
    ring = bench.ring_of([rows], 3)
    assert len(ring) == bench.RING
    assert all(item[0].shape == (3, 1) for item in ring)
    assert len({item[0].tobytes() for item in ring}) == bench.RING
    large = [np.zeros((2, bench.RING_BYTES // 16, 2), np.float32)]  # 4 MiB a row
    assert len(bench.ring_of(large, 4)) == 2


def test_every_call_is_timed_by_itself() -> None:
    seen: list[int] = []
    times = bench.times_ns(lambda inputs: seen.append(int(inputs[0][0])), [[np.array([k])] for k in range(3)], 0, 7)
    assert seen == [0, 1, 2, 0, 1, 2, 0]
    assert len(times) == 7
    assert (times > 0).all()


def test_arms_are_the_defaults_and_a_number_of_threads_that_is_faster(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What counts as faster is set here, because two threads may be either."""
    exports = [
        Export(variant="a", seed=0, format=name, file=f"{name}/model{FORMATS[name].suffix}") for name in ("litert",)
    ]
    program = Program(folder, folder / "inputs.npz", None, {})
    monkeypatch.setattr(fingerprint, "usable_cores", lambda: 2)
    monkeypatch.setattr("halfstep.serve.alone._CLEARLY_FASTER", 100.0)
    default, other = arms_of(exports, [1], program)
    assert (default.name, default.threads, other.name) == ("litert", None, "litert.2-thread")
    assert other.alone is not None
    assert other.alone.threads == 2
    monkeypatch.setattr("halfstep.serve.alone._CLEARLY_FASTER", 0.0)
    (alone,) = arms_of(exports, [1], program)
    assert alone.alone is not None
    (whole,) = with_throughput([alone], exports, program)
    assert whole.alone is not None
    assert [item.batch_size for item in whole.alone.batches] == list(THROUGHPUT_SIZES)


def test_declared_number_of_threads_is_the_only_one(folder: Path) -> None:
    export = Export(variant="a", seed=0, format="litert", file="litert/model.tflite")
    (arm,) = arms_of([export], [1], Program(folder, folder / "inputs.npz", None, {}, threads=1))
    assert arm.threads == 1


def test_file_that_cannot_be_timed_alone_is_said_and_timed_in_turns(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    export = Export(variant="a", seed=0, format="litert", file="litert/absent.tflite")
    (arm,) = arms_of([export], [1], Program(folder, folder / "inputs.npz", None, {}))
    assert arm.alone is None
    assert "LiteRT could not be timed in a process of its own: " in capsys.readouterr().out
