"""`task.script`: a script outside of the checkout, from `dvc repro` to a verdict."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.pipeline.conftest import Checkout


@pytest.mark.slow
def test_script_outside_of_the_checkout_gets_a_verdict(copied: Checkout, root: Path, tmp_path: Path) -> None:
    script = tmp_path / "theirs" / "train.py"
    script.parent.mkdir()
    shutil.copy(root / "examples/plain_script.py", script)
    copied.configure(
        {
            "task.script": str(script),
            "train.epochs": None,
            "train.batch_size": None,
            "task.arguments": ["--width", "8"],
            "variants.mixed_bfloat16.float32_layers": [".*/conv2d_1"],
        }
    )
    output = copied.check_output("dvc", "repro")
    assert "prepare: train.py: the call of fit in line 38 is taken" in output
    info = copied.json("data/prepared/task.json")
    assert (info["score_name"], info["examples"], info["steps_per_epoch"]) == ("accuracy", 360, 34)

    metrics = copied.json("data/train/float32-0/metrics.json")
    assert metrics["test_accuracy"] > 0.8
    assert metrics["permuted_p"] < 1e-6
    result = copied.json("data/compare/comparison.json")
    in_force = copied.json("data/profile/mixed_bfloat16/summary.json")["in_force"]
    assert (in_force["float32_layers"], in_force["float32_casts"]) == (["sequential/conv2d_1"], 2)
    candidate = result["candidates"]["mixed_bfloat16"]
    assert candidate["verdict"] in ("adopt", "reject", "inconclusive")
    assert "quality" in candidate
    assert "speed_only" not in result
    assert result["setup"]["task"]["name"] == "train.py"
    assert copied.json("data/profile/float32/summary.json")["metrics"]["train_examples_per_s"] > 0

    assert [path.name for path in script.parent.iterdir()] == ["train.py"]
    written = copied.root / ".halfstep/script"
    assert "best.keras" in {path.name for path in (written / "float32-0").iterdir()}
    assert {"float32-0.txt", "_control-0.txt"} <= {path.name for path in written.iterdir()}  # they run at once
    assert "Running stage 'train" not in copied.check_output("dvc", "repro")
    script.write_text(script.read_text().replace("patience=3", "patience=2"))
    again = copied.check_output("dvc", "repro", "prepare")
    assert "Running stage 'prepare'" in again
