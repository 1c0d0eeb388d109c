"""`train.epochs: 0`: the pipeline compares the speed, and trains nothing."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from tests.pipeline.conftest import Checkout


def test_speed_is_compared_without_a_training(copied: Checkout, tmp_path: Path) -> None:
    output = copied.check_output("dvc", "exp", "run", "-S", "train.epochs=0")
    assert "train mixed_bfloat16 seed 0: not trained (train.epochs is 0)" in output
    assert "Speed only: mixed_bfloat16 is " in output

    assert copied.json("data/train/float32-0/metrics.json")["status"] == "not_trained"
    assert copied.files("data/train") == {
        f"{name}-0/{file}" for name in ("float32", "mixed_bfloat16") for file in ("metrics.json", "manifest.json")
    }
    profiled = copied.files("data/profile")
    assert {name.partition("/")[0] for name in profiled} == {"float32", "mixed_bfloat16", "_control"}
    assert [name for name in profiled if "same_weights" in name] == []

    result = copied.json("data/compare/comparison.json")
    candidate = result["candidates"]["mixed_bfloat16"]
    assert result["speed_only"] is True
    assert {candidate["verdict"], candidate["verdict_inference_b1"]} <= {"faster", "slower", "inconclusive"}
    assert not {"quality", "quality_same_weights", "same_weights", "tests"} & set(candidate)

    runs = {run.info.run_name: run for run in copied.runs()}
    assert set(runs) == {
        *("prepare", "train float32 seed 0", "train mixed_bfloat16 seed 0", "float32", "mixed_bfloat16", "compare")
    }
    assert {run.info.status for run in runs.values()} == {"FINISHED"}
    assert "speed only" in runs["train float32 seed 0"].data.tags["mlflow.note.content"]
    assert runs["compare"].data.tags["speed_only"] == "true"
    _dvc_shows_what_there_is(copied, tmp_path / "plots")
    _gate_is_refused(copied)
    assert copied.repro() == {"environment"}


def _dvc_shows_what_there_is(checkout: Checkout, plots: Path) -> None:
    for shown in ("metrics show", "metrics diff HEAD", "exp show --csv"):
        assert "mixed_bfloat16.speedup_train" in checkout.check_output("dvc", *shown.split())
    for drawn in ("plots show", "plots diff HEAD workspace"):
        checkout.check_output("dvc", *drawn.split(), "--out", str(plots))
        page = (plots / "index.html").read_text(encoding="utf-8")
        assert "Latency of inference" in page
    with (checkout.root / "data/compare/plots/score_by_epoch.csv").open(encoding="utf-8") as stream:
        assert len(list(csv.reader(stream))) == 1


def _gate_is_refused(checkout: Checkout) -> None:
    before = checkout.snapshot()
    with checkout.restored("params.yaml"):
        checkout.configure({"compare.gate": True})
        done = checkout.run("dvc", "repro")
    assert done.returncode != 0
    assert "params.yaml: compare.gate is true and train.epochs is 0; " in done.stderr
    assert "Traceback" not in done.stderr
    assert checkout.snapshot() == before
