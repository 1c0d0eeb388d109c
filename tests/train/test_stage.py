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

from halfstep.params.schema import ModelParams, Params, TrainParams
from halfstep.results.training import TrainingMetrics
from halfstep.system import files
from halfstep.tracking import backfill, run_logging
from halfstep.tracking.tracker import Tracker
from tests import warm

VARIANT = "mixed_bfloat16"
PARAMS = Params(train=TrainParams(variants=(VARIANT,), epochs=2, batch_size=8))


def runs(project: Path, stage: str = "train") -> list[Run]:
    client = MlflowClient(f"sqlite:///{project}/mlflow.db")
    ids = [experiment.experiment_id for experiment in client.search_experiments()]
    return list(client.search_runs(ids, f"tags.stage = '{stage}'"))


def artifacts(project: Path, run: Run) -> set[str]:
    client = MlflowClient(f"sqlite:///{project}/mlflow.db")
    return {entry.path for entry in client.list_artifacts(run.info.run_id)}


def test_training_writes_files_and_logs_a_run(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from halfstep.train.stage import run_stage

    run_stage(PARAMS, VARIANT, 1)
    directory = files.train_dir(VARIANT, 1)
    (run,) = runs(project)
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "train mixed_bfloat16 seed 1"
    assert run.data.tags["result.sha256"] == files.verify_manifest(directory)
    final = TrainingMetrics.read(directory / "metrics.json").tracked()
    assert {name: run.data.metrics[name] for name in final} == pytest.approx(final)
    by_epoch = {"loss", "accuracy", "val_loss", "val_accuracy", "learning_rate", "epoch_time_s"}
    assert set(run.data.metrics) == by_epoch | set(final)
    history = MlflowClient(f"sqlite:///{project}/mlflow.db").get_metric_history(run.info.run_id, "loss")
    assert [entry.step for entry in history] == [0, 1]
    assert {"history.csv", "metrics.json", "confusion_matrix.csv"} <= artifacts(project, run)
    assert run.inputs is not None
    assert run.inputs.dataset_inputs[0].dataset.name == "digits"
    assert run.outputs is not None
    assert run.outputs.model_outputs, "the model is not logged"
    output = capfd.readouterr()
    assert [line.split(":")[0] for line in output.out.splitlines()] == ["train mixed_bfloat16 seed 1"]
    assert "Traceback" not in output.err

    # Results that DVC restores from its cache have no run: one is made from the files, and only once.
    tracker = Tracker(PARAMS.tracking)
    client = MlflowClient(f"sqlite:///{project}/mlflow.db")
    client.delete_run(run.info.run_id)
    completed = backfill.backfill(tracker, PARAMS.model_copy(update={"train": with_seed(1)}))
    assert backfill.backfill(tracker, PARAMS.model_copy(update={"train": with_seed(1)})) == completed
    (restored,) = runs(project)
    assert restored.info.run_id in completed
    assert restored.data.metrics == pytest.approx(run.data.metrics)
    assert restored.info.run_name == run.info.run_name
    assert {"history.csv", "metrics.json", "confusion_matrix.csv"} <= artifacts(project, restored)
    assert [prepared.info.run_name for prepared in runs(project, "prepare")] == ["prepare"]


def with_seed(seed: int) -> TrainParams:
    return PARAMS.train.model_copy(update={"seeds": (seed,)})


def stage(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [warm.python(), "-m", "stages.train", *arguments]
    variables = os.environ | {"PYTHONPATH": str(root)}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=variables, timeout=120)


@pytest.mark.slow
def test_diverged_training_is_a_result(root: Path, project: Path, write_params: Callable[..., Path]) -> None:
    (project / "user_model.py").write_text(
        "import keras\n\n\ndef build(shape, classes):\n"
        "    x = keras.Input(shape, dtype='uint8')\n"
        "    y = keras.layers.Dense(classes)(keras.layers.Flatten()(keras.layers.Rescaling(1e30)(x)))\n"
        "    return keras.Model(x, keras.layers.Activation('softmax', dtype='float32')(y))\n"
    )
    write_params(
        model={"name": "user_model:build"},
        train={"epochs": 2, "batch_size": 8, "learning_rate": 100, "optimizer": "sgd", "warmup_epochs": 0},
    )
    done = stage(root, "--variant", "float32", "--seed", "0")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    last = done.stdout.splitlines()[-1]
    assert last.startswith("train float32 seed 0: failed: the loss is nan in epoch 1")
    assert "`dvc repro -f -s train@float32-0` tries again" in last
    metrics = files.read_json(files.train_dir("float32", 0) / "metrics.json")
    assert metrics["status"] == "failed"
    assert not {"test_accuracy", "test_loss"} & set(metrics)
    assert (files.train_dir("float32", 0) / "model.keras").exists()
    (run,) = runs(project)
    assert run.info.status == "FAILED"
    assert "the loss is nan" in run.data.tags["failure"]
    assert "loss" not in run.data.metrics  # MLflow would show NaN as 0
    assert run.data.tags["result.sha256"] == files.verify_manifest(files.train_dir("float32", 0))


@pytest.mark.slow
@pytest.mark.parametrize("python", [None, sys.executable], ids=["here", "in another interpreter"])
def test_interrupted_training_resumes_with_its_earlier_epochs(
    root: Path, project: Path, write_params: Callable[..., Path], python: str | None
) -> None:
    write_params(train={"epochs": 400, "batch_size": 8}, task={"python": python})
    command = [sys.executable, "-u", "-m", "stages.train", "--variant", "float32", "--seed", "0"]
    variables = os.environ | {"PYTHONPATH": str(root)}
    ids, printed = [], list[str]()
    for number, status in ((signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)):
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=variables,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # `nohup` ignores it
        )
        assert process.stdout is not None
        printed.append(next(iter(process.stdout)))
        while "seed 0: epoch " not in printed[-1]:
            printed.append(next(iter(process.stdout)))
        started_s = time.monotonic()
        process.send_signal(number)
        _, errors = process.communicate(timeout=30)
        assert process.returncode == status
        assert time.monotonic() - started_s < 10
        assert "`dvc repro` resumes it" in errors.splitlines()[0]
        assert "Traceback" not in errors
        assert {run.info.status for run in runs(project)} == {"KILLED"}
        ids.append(next(run.info.run_id for run in runs(project) if run.info.run_id not in ids))
    assert len([line for line in printed if line.startswith("train float32 seed 0: resumed from step ")]) == 2
    assert len(list((project / ".halfstep/checkpoints/float32-0").rglob("*.npz"))) == 2
    steps = [
        metric.step for metric in MlflowClient(f"sqlite:///{project}/mlflow.db").get_metric_history(ids[-1], "val_loss")
    ]
    assert steps == list(range(len(steps)))


OWN_MODEL = """import threading
import time

import keras


def build(shape, classes):
    threading.Thread(target=time.sleep, args=(600,), name="my\\nthread").start()
    pixels = keras.Input(shape, dtype="uint8")
    features = keras.layers.Flatten()(keras.layers.Rescaling(1 / 255)(pixels))
    return keras.Model(pixels, keras.layers.Dense(classes, activation="ACTIVATION", dtype="float32")(features))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("activation", "status"), [("softmax", 0), ("relu", 1)])
def test_thread_of_the_model_does_not_keep_the_stage_alive(
    root: Path, project: Path, write_params: Callable[..., Path], activation: str, status: int
) -> None:
    (project / "user_model.py").write_text(OWN_MODEL.replace("ACTIVATION", activation))
    write_params(model={"name": "user_model:build"}, train={"epochs": 1, "batch_size": 8})
    done = stage(root, "--variant", "float32", "--seed", "0")
    assert done.returncode == status, done.stderr
    lines = done.stderr.splitlines()
    assert lines[-1] == r"train: does not wait for threads that your code started: 'my\nthread'"
    assert len(lines) == (2 if status else 1)
    assert [run.info.status for run in runs(project)] == ["FAILED" if status else "FINISHED"]
    if not status:
        assert "test accuracy" in done.stdout
        files.verify_manifest(files.train_dir("float32", 0))


def test_variant_without_an_entry_is_refused(root: Path, project: Path, write_params: Callable[..., Path]) -> None:
    write_params()
    done = stage(root, "--variant", "float33", "--seed", "0")
    assert done.returncode == 2
    assert done.stderr.startswith("--variant is 'float33'; allowed are the entries of variants: float32,")
    assert len(done.stderr.splitlines()) == 1


def test_user_error_fails_the_run_and_writes_nothing(project: Path) -> None:
    from halfstep.errors import ModelError
    from halfstep.train.stage import run_stage

    params = PARAMS.model_copy(update={"model": ModelParams(name="no_such_module:build")})
    with pytest.raises(ModelError, match="cannot be built"):
        run_stage(params, VARIANT, 1)
    assert [run.info.status for run in runs(project)] == ["FAILED"]
    assert not files.train_dir(VARIANT, 1).exists()


def test_score_metrics_have_a_deviation_from_two_seeds_on() -> None:
    assert run_logging.score_metrics("accuracy", [0.5]) == {"test_accuracy": 0.5}
    assert run_logging.score_metrics("accuracy", []) == {}
    both = run_logging.score_metrics("accuracy", [0.5, 0.7])
    assert both == {"test_accuracy": pytest.approx(0.6), "test_accuracy_sd": pytest.approx(np.std([0.5, 0.7], ddof=1))}
