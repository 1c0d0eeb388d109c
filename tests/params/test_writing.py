"""A variant is added to params.yaml; the rest of the file stays as it was."""

from __future__ import annotations

import shutil
from pathlib import Path

from stages.params import load
from stages.params.writing import add_variant


def test_everything_else_stays_as_it_is_written(root: Path, tmp_path: Path) -> None:
    path = Path(shutil.copy(root / "params.yaml", tmp_path / "params.yaml"))
    before = (root / "params.yaml").read_text()
    entry = {"policy": "mixed_float16", "xla": None, "float32_layers": [".*norm", "last"], "parent": "mixed_float16"}
    add_variant("mixed_float16_layers", entry, path)
    after = path.read_text().splitlines()
    added = [line for line in after if line not in before.splitlines()]
    removed = [line for line in before.splitlines() if line not in after]
    assert len(added) == 2  # train.variants, and the entry
    assert removed == ["  variants: [float32, mixed_float16, mixed_bfloat16]"]
    found = load(path)
    assert found.train.variants[-1] == "mixed_float16_layers"
    assert found.variants["mixed_float16_layers"].float32_layers == (".*norm", "last")
    add_variant("mixed_float16_layers", entry | {"float32_layers": ["last"]}, path)
    assert load(path).variants["mixed_float16_layers"].float32_layers == ("last",)
    assert load(path).train.variants.count("mixed_float16_layers") == 1
