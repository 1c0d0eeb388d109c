"""The form of params.yaml."""

from __future__ import annotations

import shutil
from pathlib import Path

from dvc.utils.hydra import apply_overrides


def test_an_experiment_changes_nothing_but_its_parameter(root: Path, tmp_path: Path) -> None:
    """`dvc exp run --set-param` writes the whole file anew: in another form, its diff would be of 40 lines."""
    path = tmp_path / "params.yaml"
    shutil.copy(root / "params.yaml", path)
    apply_overrides(path, ["train.batch_size=64"])
    before, after = ((root / "params.yaml").read_text(encoding="utf-8"), path.read_text(encoding="utf-8"))
    assert after == before.replace("  batch_size: 32 ", "  batch_size: 64 ") != before
