from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from mlflow import MlflowClient
from mlflow.entities import Run

from stages import files
from stages.params import ModelParams, Params, TrainParams
from stages.tracking import completion, views
from stages.tracking.runs import Tracker

VARIANT = "mixed_bfloat16"
PARAMS = Params(train=TrainParams(variants=(VARIANT,), epochs=2, batch_size=8))


def runs(project: Path, stage: str = "train") -> list[Run]:
    client = MlflowClient(f"sqlite:///{project}/mlflow.db")
    ids = [experiment.experiment_id for experiment in client.search_experiments()]
    return list(client.search_runs(ids, f"tags.stage = '{stage}'"))


def artifacts(project: Path, run: Run) -> set[str]:
    client = MlflowClient(f"sqlite:///{project}/mlflow.db")
    return {entry.path for entry in client.list_artifacts(run.info.run_id)}


def test_a_training_is_files_and_a_run(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from stages.train.stage import run_stage

    run_stage(PARAMS, VARIANT, 1)
    directory = files.train_dir(VARIANT, 1)
    metrics = files.read_json(directory / "metrics.json")
    (run,) = runs(project)
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "train mixed_bfloat16 seed 1"
    assert run.data.tags["result.sha256"] == files.check_manifest(directory)
    numbers = {name: metrics[name] for name in views.FINAL_METRICS if name in metrics}
    assert {name: run.data.metrics[name] for name in numbers} == pytest.approx(numbers)
    by_epoch = {"loss", "accuracy", "val_loss", "val_accuracy", "learning_rate", "epoch_time_s"}
    assert set(run.data.metrics) == by_epoch | set(numbers)
    history = MlflowClient(f"sqlite:///{project}/mlflow.db").get_metric_history(run.info.run_id, "loss")
    assert [entry.step for entry in history] == [0, 1]
    assert {"history.csv", "metrics.json", "confusion_matrix.png"} <= artifacts(project, run)
    assert run.inputs is not None
    assert run.inputs.dataset_inputs[0].dataset.name == "digits"
    assert run.outputs is not None
    assert run.outputs.model_outputs, "the model is not logged"
    said = capfd.readouterr()
    assert [line.split(":")[0] for line in said.out.splitlines()] == ["train mixed_bfloat16 seed 1"] * 3
    assert "Traceback" not in said.err

    # What DVC restores from its cache has no run here: it is made from the files, and only once.
    tracker = Tracker(PARAMS.tracking)
    client = MlflowClient(f"sqlite:///{project}/mlflow.db")
    client.delete_run(run.info.run_id)
    completed = completion.complete(tracker, PARAMS.model_copy(update={"train": with_seed(1)}))
    assert completion.complete(tracker, PARAMS.model_copy(update={"train": with_seed(1)})) == completed
    (restored,) = runs(project)
    assert restored.info.run_id in completed
    assert restored.data.metrics == pytest.approx(run.data.metrics)
    assert restored.info.run_name == run.info.run_name
    assert {"history.csv", "metrics.json", "confusion_matrix.png"} <= artifacts(project, restored)
    assert [prepared.info.run_name for prepared in runs(project, "prepare")] == ["prepare"]


def with_seed(seed: int) -> TrainParams:
    return PARAMS.train.model_copy(update={"seeds": (seed,)})


def stage(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "stages.train", *arguments]
    variables = os.environ | {"PYTHONPATH": str(root)}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=variables)


def test_a_training_that_diverges_is_a_result(root: Path, project: Path, write_params: Callable[..., Path]) -> None:
    (project / "own.py").write_text(
        "import keras\n\n\ndef build(shape, classes):\n"
        "    x = keras.Input(shape, dtype='uint8')\n"
        "    y = keras.layers.Dense(classes)(keras.layers.Flatten()(keras.layers.Rescaling(1e30)(x)))\n"
        "    return keras.Model(x, keras.layers.Activation('softmax', dtype='float32')(y))\n"
    )
    write_params(
        model={"name": "own:build"},
        train={"epochs": 2, "batch_size": 8, "learning_rate": 100, "optimizer": "sgd", "warmup_epochs": 0},
    )
    done = stage(root, "--variant", "float32", "--seed", "0")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    last = done.stdout.splitlines()[-1]
    assert last.startswith("train float32 seed 0: failed: the loss is nan in epoch 1")
    assert "`dvc repro -f -s train@float32-0` tries it again" in last
    metrics = files.read_json(files.train_dir("float32", 0) / "metrics.json")
    assert metrics["status"] == "failed"
    assert not {"test_accuracy", "test_loss"} & set(metrics)
    assert (files.train_dir("float32", 0) / "model.keras").exists()
    (run,) = runs(project)
    assert run.info.status == "FAILED"
    assert "the loss is nan" in run.data.tags["failure"]
    assert "loss" not in run.data.metrics  # MLflow would show NaN as 0
    assert run.data.tags["result.sha256"] == files.check_manifest(files.train_dir("float32", 0))


def test_a_training_that_is_told_to_end_goes_on_later_in_the_same_run(
    root: Path, project: Path, write_params: Callable[..., Path]
) -> None:
    write_params(train={"epochs": 400, "batch_size": 8})
    command = [sys.executable, "-u", "-m", "stages.train", "--variant", "float32", "--seed", "0"]
    variables = os.environ | {"PYTHONPATH": str(root)}
    ids, lines = [], []
    for number, status in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=variables, start_new_session=True
        )
        assert process.stdout is not None
        lines.append(process.stdout.readline())
        process.stdout.readline()
        started_s = time.monotonic()
        process.send_signal(number)
        _, said = process.communicate(timeout=30)
        assert process.returncode == status
        assert time.monotonic() - started_s < 10
        assert "the next `dvc repro` goes on from here" in said.splitlines()[0]
        assert "Traceback" not in said
        (run,) = runs(project)
        ids.append(run.info.run_id)
        assert run.info.status == "KILLED"
    assert ids[0] == ids[1]
    assert lines[0].startswith("train float32 seed 0: epoch 1/400")
    assert lines[1].startswith("train float32 seed 0: goes on after step ")
    assert len(list((project / ".halfstep/checkpoints/float32-0").rglob("*.npz"))) == 2
    steps = [
        metric.step for metric in MlflowClient(f"sqlite:///{project}/mlflow.db").get_metric_history(ids[0], "val_loss")
    ]
    assert steps == list(range(len(steps)))


def test_a_variant_without_an_entry(root: Path, project: Path, write_params: Callable[..., Path]) -> None:
    write_params()
    done = stage(root, "--variant", "float33", "--seed", "0")
    assert done.returncode == 2
    assert done.stderr.startswith("--variant is 'float33'; allowed are the entries of variants: float32,")
    assert len(done.stderr.splitlines()) == 1


def test_a_failure_of_the_users_fails_the_run_and_writes_nothing(project: Path) -> None:
    from stages.errors import ModelError
    from stages.train.stage import run_stage

    params = PARAMS.model_copy(update={"model": ModelParams(name="no_such_module:build")})
    with pytest.raises(ModelError, match="cannot be built"):
        run_stage(params, VARIANT, 1)
    assert [run.info.status for run in runs(project)] == ["FAILED"]
    assert not files.train_dir(VARIANT, 1).exists()


def test_accuracies_of_finished_trainings_alone(project: Path) -> None:
    for seed, metrics in enumerate([{"status": "finished", "test_accuracy": 0.5}, {"status": "failed", "reason": "x"}]):
        files.write_json(files.train_dir("a", seed) / "metrics.json", metrics)
        files.write_manifest(files.train_dir("a", seed))
    assert completion.test_accuracies("a", [0, 1]) == [0.5]
    assert views.accuracy_metrics([0.5]) == {"test_accuracy": 0.5}
    assert views.accuracy_metrics([]) == {}
    both = views.accuracy_metrics([0.5, 0.7])
    assert both == {"test_accuracy": pytest.approx(0.6), "test_accuracy_sd": pytest.approx(np.std([0.5, 0.7], ddof=1))}
