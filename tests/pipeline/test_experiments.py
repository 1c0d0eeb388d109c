"""`dvc exp run`, also in a temporary copy of the checkout, and the user's own images."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tests.tracked_runs import by_name

if TYPE_CHECKING:
    from tests.pipeline.conftest import Checkout

Draw = Callable[..., Path]


def test_experiment_in_a_temporary_copy_logs_to_the_original_store(copied: Checkout) -> None:
    before = copied.snapshot()
    output = copied.check_output(
        "dvc", "exp", "run", "--temp", "--name", "trial", "-S", "variants.mixed_bfloat16.tf32=false"
    )
    assert "Running stage 'train@mixed_bfloat16-0'" in output
    assert "Running stage 'train@float32-0'" not in output
    assert copied.snapshot() == before

    runs = copied.runs()
    trained = [run for run in runs if run.info.run_name == "train mixed_bfloat16 seed 0"]
    assert [run.data.params["variant.tf32"] for run in trained] == ["false"]
    assert set(by_name(runs)) >= {"prepare", "train float32 seed 0", "float32", "compare"}
    for run in runs:
        assert run.data.tags["dvc.exp_name"] == "trial"
        artifacts = Path(str(run.info.artifact_uri).removeprefix("file://"))
        assert artifacts.is_relative_to(copied.root / "mlruns")
        assert any(artifacts.iterdir())

    experiments = copied.check_output("dvc", "exp", "show", "--csv")
    assert "trial" in experiments
    assert "mixed_bfloat16.speedup_train" in experiments.splitlines()[0]
    changed = copied.check_output("dvc", "params", "diff", "HEAD", "trial")
    assert "variants.mixed_bfloat16.tf32" in changed
    assert "mixed_bfloat16.speedup_train" in copied.check_output("dvc", "metrics", "diff", "HEAD", "trial")


def test_temporary_copy_uses_untracked_images_of_the_original(copied: Checkout, draw_images: Draw) -> None:
    draw_images(copied.root / "data/raw", cat=12, dog=12)
    output = copied.check_output("dvc", "exp", "run", "--temp", "-S", "data.source=folder", "prepare")
    assert "of 2 classes" in output
    (run,) = copied.runs()
    assert run.data.metrics["classes"] == 2
