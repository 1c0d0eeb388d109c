"""README's commands that keep the results before and after a change."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.pipeline.conftest import Checkout


def commands(root: Path) -> list[str]:
    """The lines of the block that README shows below "Change one thing"."""
    section = (root / "README.md").read_text(encoding="utf-8").split("## Change one thing")[1]
    return re.split(r"```(?:bash)?\n", section)[1].strip().splitlines()


def test_both_results_are_kept(copied: Checkout, root: Path) -> None:
    copied.check_output("git", "rm", "--quiet", "--cached", "dvc.lock")  # as it is after a first `dvc repro`
    copied.check_output("git", "commit", "--quiet", "--message", "No results yet")
    before = copied.json("data/compare/metrics.json")
    commit, run = commands(root)
    copied.check_output("bash", "-c", commit)
    assert copied.check_output("git", "status", "--porcelain") == ""
    copied.check_output("bash", "-c", run.replace("batch_size=128", "batch_size=64"))  # 128 it is already
    shown = json.loads(copied.check_output("dvc", "exp", "show", "--json"))
    revisions = [row["data"] for row in (shown[0], shown[1])]
    assert [revision["params"]["params.yaml"]["data"]["train"]["batch_size"] for revision in revisions] == [64, 128]
    after, kept = (revision["metrics"]["data/compare/metrics.json"]["data"] for revision in revisions)
    assert kept == before
    assert after != before
    differing = json.loads(copied.check_output("dvc", "metrics", "diff", "--json"))
    assert "data/compare/metrics.json" in differing["diff"] if "diff" in differing else differing
