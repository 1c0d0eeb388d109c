"""`train.epochs: 0` by README's commands: speeds are compared, nothing is trained, and the results before are kept."""

from __future__ import annotations

import csv
import json
import re
from typing import TYPE_CHECKING

from tests.tracked_runs import by_name

if TYPE_CHECKING:
    from pathlib import Path

    from tests.pipeline.conftest import Checkout


def commands(root: Path) -> list[str]:
    """The lines of the block that README shows below "Change one thing"."""
    section = (root / "README.md").read_text(encoding="utf-8").split("## Change one thing")[1]
    return re.split(r"```(?:bash)?\n", section)[1].strip().splitlines()


def test_speed_is_compared_without_a_training(copied: Checkout, root: Path, tmp_path: Path) -> None:
    copied.check_output("git", "rm", "--quiet", "--cached", "dvc.lock")  # as it is after a first `dvc repro`
    copied.check_output("git", "commit", "--quiet", "--message", "No results yet")
    before = copied.json("data/compare/metrics.json")
    commit, run = commands(root)
    copied.check_output("bash", "-c", commit)
    assert copied.check_output("git", "status", "--porcelain") == ""
    output = copied.check_output("bash", "-c", run.replace("batch_size=128", "epochs=0"))
    assert "train mixed_bfloat16 seed 0: not trained (train.epochs is 0)" in output
    assert "Report     data/compare/report.html" in output

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

    runs = by_name(copied.runs())
    assert set(runs) == {
        *("prepare", "train float32 seed 0", "train mixed_bfloat16 seed 0", "float32", "mixed_bfloat16", "compare")
    }
    assert {run.info.status for run in runs.values()} == {"FINISHED"}
    assert "speed only" in runs["train float32 seed 0"].data.tags["mlflow.note.content"]
    assert runs["compare"].data.tags["speed_only"] == "true"
    _both_results_are_kept(copied, before)
    _dvc_shows_what_there_is(copied, tmp_path / "plots")
    _gate_is_refused(copied)
    assert copied.repro() == {"environment"}


def _both_results_are_kept(checkout: Checkout, before: object) -> None:
    shown = json.loads(checkout.check_output("dvc", "exp", "show", "--json"))
    revisions = [row["data"] for row in (shown[0], shown[1])]
    assert [revision["params"]["params.yaml"]["data"]["train"]["epochs"] for revision in revisions] == [0, 2]
    after, kept = (revision["metrics"]["data/compare/metrics.json"]["data"] for revision in revisions)
    assert kept == before
    assert after != before


def _dvc_shows_what_there_is(checkout: Checkout, plots: Path) -> None:
    assert "mixed_bfloat16.speedup_train" in checkout.check_output("dvc", "metrics", "diff", "HEAD")
    checkout.check_output("dvc", "plots", "diff", "HEAD", "workspace", "--out", str(plots))
    assert "Latency of inference" in (plots / "index.html").read_text(encoding="utf-8")
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
