"""The stage with `train.epochs: 0`: nothing is trained."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from mlflow import MlflowClient

from halfstep.errors import CorruptFileError
from halfstep.params.schema import Params, TrainParams
from halfstep.results.training import TrainingMetrics
from halfstep.system import files
from halfstep.train.not_trained import run_stage

PARAMS = Params(train=TrainParams(epochs=0, batch_size=8))


def test_files_run_and_line_say_that_nothing_was_trained(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    stale = files.train_dir("float32", 3) / "model.keras"
    files.write_text(stale, "of another training")
    run_stage(PARAMS, "float32", 3)
    directory = files.train_dir("float32", 3)
    assert {path.name for path in directory.iterdir()} == {"metrics.json", "manifest.json"}
    metrics = TrainingMetrics.read(directory / "metrics.json")
    assert (metrics.status, metrics.batch_size, metrics.tracked()) == ("not_trained", 8, {})
    assert metrics.data_sha256 == files.verify_manifest(files.PREPARED)

    client = MlflowClient(f"sqlite:///{project}/mlflow.db")
    (run,) = client.search_runs([item.experiment_id for item in client.search_experiments()])
    assert (run.info.run_name, run.info.status) == ("train float32 seed 3", "FINISHED")
    assert run.data.tags["result.sha256"] == files.verify_manifest(directory)
    assert "speed only" in run.data.tags["mlflow.note.content"]
    assert run.data.metrics == {}
    output = capfd.readouterr()
    assert output.out == "train float32 seed 3: not trained (train.epochs is 0); the comparison is of speed only\n"
    assert output.err == ""


def test_line_of_a_variant_that_is_not_trained_names_its_entry(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run_stage(Params(train=TrainParams(epochs=2)), "mixed_float16", 0)
    assert capfd.readouterr().out == (
        "train mixed_float16 seed 0: not trained (variants.mixed_float16.trained is false); its speed is judged\n"
    )


def test_stage_imports_no_tensorflow(project: Path, root: Path, write_params: Callable[..., Path]) -> None:
    write_params(train={"epochs": 0})
    code = (
        "import sys; sys.argv = ['train', '--variant', 'float32', '--seed', '0']\n"
        "from stages.train import main\n"
        "status = main()\n"
        "print(status, sorted({'tensorflow', 'keras'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines()[-1:] == ["0 []"], done.stderr
    assert (files.train_dir("float32", 0) / "metrics.json").is_file()


def test_damaged_data_are_refused(project: Path) -> None:
    (files.PREPARED / "test_labels.npy").write_bytes(b"damaged")
    with pytest.raises(CorruptFileError, match=r"test_labels\.npy"):
        run_stage(PARAMS, "float32", 0)
    assert not files.train_dir("float32", 0).exists()
