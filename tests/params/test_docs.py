from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from halfstep.params.command import parameter_table


def test_parameter_page_is_up_to_date(root: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "halfstep", "params"], cwd=root, capture_output=True, text=True, check=True
    )
    page = (root / "docs/parameters.md").read_text(encoding="utf-8")
    assert page == done.stdout, "run `python -m halfstep params > docs/parameters.md`"


def test_table_has_names_ranges_and_defaults() -> None:
    rows = [line for line in parameter_table().splitlines() if line.startswith("| `")]
    assert [row for row in rows if row.count(" | ") != 3] == []
    for row in (
        "| `data.image_size` | height and width after resizing, in pixels | "
        "an integer of at least 8 and at most 1,024 | `32` |",
        "| `variants.<name>.policy` | dtype policy of Keras | "
        "one of float32, mixed_float16, mixed_bfloat16, float16, bfloat16 | required |",
        "| `train.augment.flip` | mirror one image in two horizontally | true or false | `false` |",
    ):
        assert row in rows
    assert [row for row in rows if row.endswith(("| `[0]` |", "| `[float32, mixed_float16, mixed_bfloat16]` |"))]
    assert [row for row in rows if row.startswith("| `tracking.uri`") and row.endswith("or null | `null` |")]
