"""The lines of advice, pasted into a shell: each is an experiment with the change."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.pipeline.conftest import Checkout

pytestmark = pytest.mark.slow


def test_lines_do_what_they_say_as_pasted(copied: Checkout) -> None:
    """The formats, without a training; then a baseline without oneDNN, which is a reason with a change."""
    printed = copied.check_output("python", "-m", "halfstep", "advise").splitlines()
    (line,) = [line for line in printed if "serve.formats=" in line]
    output = copied.check_output("sh", "-c", line)
    assert "Running stage 'serve'" in output
    assert "Running stage 'train" not in output
    assert "Running stage 'profile'" not in output
    rows = copied.json("data/compare/comparison.json")["serving"]["rows"]
    assert {"saved_model", "litert"} <= {row["format"] for row in rows}

    onednn = {f"variants.{name}.onednn": False for name in ("float32", "mixed_bfloat16")}
    copied.configure(onednn | {"train.epochs": 0, "serve.formats": []})
    copied.repro()
    copied.commit("Without oneDNN")
    listed = json.loads(copied.check_output("python", "-m", "halfstep", "advise", "--json"))
    (advice,) = [item for item in listed if item["change"] and item["change"]["key"] == "variants.float32.onednn"]
    assert (advice["new_variant"], advice["change"]["to"]) == ("float32_onednn_on", True)
    output = copied.check_output("sh", "-c", advice["command"])
    assert "Running stage 'train@float32_onednn_on-0'" in output
    assert "Running stage 'train@float32-0'" not in output
    assert copied.json("data/profile/float32_onednn_on/summary.json")["in_force"]["onednn"] is True
    assert copied.json("data/compare/comparison.json")["candidates"]["float32_onednn_on"]["over_parent"]["parent"] == (
        "float32"
    )
    assert "float32" in {run.data.params.get("variant.parent") for run in copied.runs()}
