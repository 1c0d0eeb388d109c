"""`dvc exp run`, also where it works in a temporary copy of the checkout, and one's own images."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.pipeline.conftest import Checkout

Draw = Callable[..., Path]


def test_an_experiment_in_a_temporary_copy_leaves_its_runs_in_the_original_store(copied: Checkout) -> None:
    before = copied.snapshot()
    said = copied.succeed("dvc", "exp", "run", "--temp", "--name", "trial", "-S", "variants.mixed_bfloat16.tf32=false")
    assert "Running stage 'train@mixed_bfloat16-0'" in said
    assert "Running stage 'train@float32-0'" not in said
    assert copied.snapshot() == before

    runs = copied.runs()
    fresh = [run for run in runs if run.info.run_name == "train mixed_bfloat16 seed 0"]
    assert [run.data.params["variant.tf32"] for run in fresh] == ["false"]
    assert {run.info.run_name for run in runs} >= {"prepare", "train float32 seed 0", "float32", "compare"}
    for run in runs:
        assert run.data.tags["dvc.exp_name"] == "trial"
        place = Path(str(run.info.artifact_uri).removeprefix("file://"))
        assert place.is_relative_to(copied.root / "mlruns")
        assert any(place.iterdir())

    shown = copied.succeed("dvc", "exp", "show", "--csv")
    assert "trial" in shown
    assert "mixed_bfloat16.speedup_train" in shown.splitlines()[0]
    changed = copied.succeed("dvc", "params", "diff", "HEAD", "trial")
    assert "variants.mixed_bfloat16.tf32" in changed
    assert "mixed_bfloat16.speedup_train" in copied.succeed("dvc", "metrics", "diff", "HEAD", "trial")


def test_own_images_that_nothing_tracks_are_found_from_a_temporary_copy(copied: Checkout, draw_images: Draw) -> None:
    draw_images(copied.root / "data/raw", cat=12, dog=12)
    said = copied.succeed("dvc", "exp", "run", "--temp", "-S", "data.source=folder", "prepare")
    assert "of 2 classes" in said
    (run,) = copied.runs()
    assert run.data.metrics["classes"] == 2


@pytest.mark.parametrize("place", ["data/raw", "{root}/pictures", "~/pictures"])
def test_own_images_are_found(copied: Checkout, draw_images: Draw, place: str) -> None:
    home = copied.root.parent
    path = place.format(root=home)
    draw_images(copied.root / "data/raw" if path == "data/raw" else home / "pictures", cat=12, dog=12)
    copied.configure({"data.source": "folder", "data.path": path})
    copied.succeed("python", "-m", "stages.environment", HOME=str(home))
    copied.succeed("python", "-m", "stages.prepare", HOME=str(home))
    assert copied.json("data/prepared/info.json")["classes"] == ["cat", "dog"]


def test_a_new_image_is_a_change(copied: Checkout, draw_images: Draw) -> None:
    images = draw_images(copied.root / "data/raw", cat=12, dog=12)
    copied.configure({"data.source": "folder"})
    copied.repro("prepare")
    assert "prepare" not in copied.out_of_date()
    (images / "cat/00.png").rename(images / "cat/99.png")
    assert "prepare" in copied.out_of_date()
