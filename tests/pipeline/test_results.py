"""The files and the MLflow runs after one `dvc repro`."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pytest

from halfstep.results.comparison import Comparison
from tests.tracked_runs import by_name

if TYPE_CHECKING:
    from mlflow.entities import Run

    from tests.pipeline.conftest import Checkout

VARIANTS = ("float32", "mixed_bfloat16")
NAMES = {"prepare", "train float32 seed 0", "train mixed_bfloat16 seed 0", "float32", "mixed_bfloat16", "compare"}
EPOCH_METRICS = {"loss", "accuracy", "val_loss", "val_accuracy", "learning_rate", "epoch_time_s"}
PROFILE_METRICS = {
    *("at_a_glance/step_time_ms", "step_time_ms/p50", "step_time_ms/p95", "step_time_ms/mean", "train_images_per_s"),
    *("profiler/step_time_ms", "profiler/host_compute_ms", "profiler/input_ms", "profiler/output_ms"),
    *("profiler/compilation_ms", "profiler/other_ms", "profiler/compute_16bit_percent", "profiler/overhead_percent"),
    *("inference/b1/p50_ms", "inference/b1/p95_ms", "inference/b1/p99_ms", "inference/b1/images_per_s"),
    *("memory/peak_mib", "test_accuracy"),
}
TRACE = "trace/plugins/profile/{0}/host.xplane.pb"


@pytest.fixture(scope="module")
def runs(finished: Checkout) -> dict[str, Run]:
    """All runs by name."""
    all_runs = finished.runs()
    assert len({run.info.run_name for run in all_runs}) == len(all_runs)
    return by_name(all_runs)


def test_files_of_the_trainings(finished: Checkout) -> None:
    names = ("metrics.json", "history.csv", "model.keras", "predictions.npy", "manifest.json")
    expected = {f"{variant}-0/{name}" for variant in VARIANTS for name in names}
    assert finished.files("data/train") == expected


def test_files_of_the_measurements(finished: Checkout) -> None:
    tables = ("rounds.csv", "input_rounds.csv", "timings.csv", "inference.csv", "account.csv")
    names = (*tables, "summary.json", "manifest.json")
    expected = {f"{arm}/{name}" for arm in (*VARIANTS, "_control") for name in names}
    expected |= {f"{arm}/{TRACE.format(arm)}" for arm in (*VARIANTS, "_control")}
    expected |= {f"{variant}/audit.json" for variant in VARIANTS}
    assert finished.files("data/profile") == expected | {"mixed_bfloat16/same_weights_0.npy"}


def test_files_of_the_comparison(finished: Checkout) -> None:
    names = finished.files("data/compare")
    assert {"comparison.json", "report.html", "metrics.json"} <= names
    assert {name for name in names if name.startswith("plots/")} == {
        f"plots/{table}.csv" for table in ("score_by_epoch", "step_breakdown", "latency", "speedups")
    }


def test_columns_of_the_tables(finished: Checkout) -> None:
    expected = {
        "data/train/float32-0/history.csv": "epoch,loss,accuracy,val_loss,val_accuracy,learning_rate,epoch_time_s",
        "data/profile/float32/rounds.csv": "process,round,position,steps,round_time_ms,counted",
        "data/profile/float32/input_rounds.csv": "process,round,batches,steps,round_time_ms",
        "data/profile/_control/timings.csv": "process,round,step,step_time_ms",
        "data/profile/mixed_bfloat16/inference.csv": "process,round,batch_size,call,latency_ms,counted",
    }
    headers = {name: (finished.root / name).read_text(encoding="utf-8").splitlines()[0] for name in expected}
    assert headers == expected


def test_predictions_are_probabilities_in_the_order_of_the_test_set(finished: Checkout) -> None:
    labels = np.load(finished.root / "data/prepared/test_labels.npy")
    predictions = np.load(finished.root / "data/train/mixed_bfloat16-0/predictions.npy")
    metrics = finished.json("data/train/mixed_bfloat16-0/metrics.json")
    assert predictions.dtype == np.float32
    assert predictions.shape == (len(labels), 10)
    assert metrics["status"] == "finished"
    assert metrics["test_accuracy"] == pytest.approx(np.mean(predictions.argmax(axis=1) == labels))


def test_comparison_json_matches_its_schema(finished: Checkout) -> None:
    written = finished.json("data/compare/comparison.json")
    assert written["schema_version"] == 6
    comparison = Comparison.read(finished.root / "data/compare/comparison.json")
    assert comparison.as_json() == written
    candidate = comparison.candidates["mixed_bfloat16"]
    assert candidate.speedup is not None
    assert candidate.quality is not None
    assert set(candidate.speedup) == set(candidate.verdicts) == set(comparison.control) == {"train", "inference_b1"}
    ratio = candidate.speedup["train"]
    assert ratio.low < ratio.ratio < ratio.high
    assert (ratio.n, ratio.confidence) == (2, 0.95)
    assert 2 <= ratio.rounds <= 4
    assert ratio.baseline_time_ms / ratio.candidate_time_ms == pytest.approx(ratio.ratio)
    labels = np.load(finished.root / "data/prepared/test_labels.npy")
    assert (candidate.quality.name, candidate.quality.n) == ("accuracy", len(labels))
    assert comparison.environment == finished.json("data/environment.json")


def test_report_has_no_external_links(finished: Checkout) -> None:
    page = (finished.root / "data/compare/report.html").read_text(encoding="utf-8")
    assert not re.findall(r"""(?:src|href|action|data)\s*=\s*["']?\s*(?:https?:)?//""", page)
    assert not re.findall(r"(?:@import|url\()\s*[\"']?(?:https?:)?//", page)
    assert "mixed_bfloat16" in page


def test_xprof_opens_the_trace(finished: Checkout) -> None:
    from xprof.convert import raw_to_tool_data

    trace = finished.root / "data/profile/mixed_bfloat16" / TRACE.format("mixed_bfloat16")
    page, _ = raw_to_tool_data.xspace_to_tool_data([str(trace)], "overview_page", {"use_saved_result": False})
    for extra in set(trace.parent.iterdir()) - {trace}:  # files that xprof adds
        extra.unlink()
    assert json.loads(page)


def test_trace_command_reads_the_traces_of_the_pipeline(finished: Checkout) -> None:
    before = finished.files("data/profile")
    done = finished.stage("trace", "data/profile")
    assert done.returncode == 0, done.stderr
    numbers = json.loads(done.stdout)
    assert numbers["device_type"] == "CPU"
    assert numbers["profiler/step_time_ms"] > 0
    assert finished.files("data/profile") == before


def test_names_and_statuses_of_the_runs(runs: dict[str, Run]) -> None:
    assert set(runs) == NAMES
    assert {run.info.status for run in runs.values()} == {"FINISHED"}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("prepare", {"class_counts.csv", "rejected.csv"}),
        ("train float32 seed 0", {"history.csv", "confusion_matrix.csv"}),
        ("float32", {"trace", "timings", "summary.json"}),
        ("compare", {"report.html", "comparison.json", "plots"}),
    ],
)
def test_artifacts_of_the_runs(finished: Checkout, runs: dict[str, Run], name: str, expected: set[str]) -> None:
    paths = {item.path for item in finished.client().list_artifacts(runs[name].info.run_id)}
    assert expected <= paths


@pytest.mark.parametrize("variant", VARIANTS)
def test_metrics_of_a_variant_on_a_cpu(finished: Checkout, runs: dict[str, Run], variant: str) -> None:
    metrics = set(runs[variant].data.metrics)
    assert metrics >= PROFILE_METRICS
    assert metrics - {"test_accuracy", "at_a_glance/step_time_ms"} == set(
        finished.json(f"data/profile/{variant}/summary.json")["metrics"]
    )


def test_trace_shows_the_precision_of_the_variant(runs: dict[str, Run]) -> None:
    shares = {name: runs[name].data.metrics["profiler/compute_16bit_percent"] for name in VARIANTS}
    assert shares["float32"] < 1
    assert shares["mixed_bfloat16"] > 20


@pytest.mark.parametrize("variant", VARIANTS)
def test_training_logs_every_epoch(finished: Checkout, runs: dict[str, Run], variant: str) -> None:
    run = runs[f"train {variant} seed 0"]
    history = pd.read_csv(finished.root / f"data/train/{variant}-0/history.csv")
    for name in EPOCH_METRICS:
        logged = finished.client().get_metric_history(run.info.run_id, name)
        assert [metric.step for metric in logged] == [0, 1]
        assert [metric.value for metric in logged] == pytest.approx(history[name].tolist())
    written = finished.json(f"data/train/{variant}-0/metrics.json")
    for name in ("test_accuracy", "test_loss", "train_time_s"):
        assert run.data.metrics[name] == written[name]
    assert run.data.metrics["overall_images_per_s"] == written["train_images_per_s"]  # validation included
    assert "train_images_per_s" not in run.data.metrics
    assert "loss_scale" not in run.data.metrics


def test_metrics_and_verdicts_of_compare(finished: Checkout, runs: dict[str, Run]) -> None:
    run = runs["compare"]
    written = finished.json("data/compare/comparison.json")["candidates"]["mixed_bfloat16"]
    measures = ["speedup_train", "speedup_train_low", "speedup_train_high", "speedup_inference_b1"]
    measures += ["accuracy_delta", "accuracy_same_weights_delta"]
    expected = {f"mixed_bfloat16/{name}" for name in measures} | {"at_a_glance/mixed_bfloat16_speedup"}
    expected |= {"noise_floor/train", "noise_floor/inference_b1", "mixed_bfloat16/memory_saved_mib"}
    expected |= {f"{variant}/time_to_accuracy_s" for variant in VARIANTS}
    assert set(run.data.metrics) == expected
    assert run.data.metrics["mixed_bfloat16/speedup_train"] == written["speedup"]["train"]["ratio"]
    answer = finished.json("data/compare/comparison.json")["answer"]
    assert run.info.run_name == answer["training"].partition(" (")[0]
    casts = next(kind for kind in written["account"]["train"]["kinds"] if kind["kind"] == "cast")
    artifacts = Path(str(run.info.artifact_uri).removeprefix("file://"))
    with (artifacts / "account_changes.csv").open(encoding="utf-8") as stream:
        rows = {row["kind"]: row for row in csv.DictReader(stream)}
    assert float(rows["cast"]["low_ms"]) == casts["low"]
    assert set(rows) == {"disturbance", *(kind["kind"] for kind in written["account"]["train"]["kinds"])}
    assert run.data.tags["verdict.mixed_bfloat16"] == written["verdict"]
    assert run.data.tags["verdict_inference_b1.mixed_bfloat16"] == written["verdict_inference_b1"]


def test_model_loads_in_plain_keras(finished: Checkout, tmp_path: Path) -> None:
    program = """
import sys, keras, numpy
sys.modules["halfstep"] = None  # its import would fail
images, model = numpy.load(sys.argv[1]), keras.saving.load_model(sys.argv[2])
numpy.save("probabilities.npy", model.predict(images, verbose=0))
"""
    trained = finished.root / "data/train/mixed_bfloat16-0"
    elsewhere = type(finished)(tmp_path)
    images = finished.root / "data/prepared/test_images.npy"
    elsewhere.check_output("python", "-P", "-c", program, str(images), str(trained / "model.keras"))
    np.testing.assert_allclose(np.load(tmp_path / "probabilities.npy"), np.load(trained / "predictions.npy"), atol=1e-2)
