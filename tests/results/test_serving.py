"""What older releases wrote of formats is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from halfstep.results.comparison import Serving
from halfstep.results.serving import SERVING, Served

ROWS: list[dict[str, Any]] = [
    {"variant": "mixed_bfloat16", "format": "litert", "refused_in": "mixed_bfloat16", "own_refusal": "LiteRT: no"},
    {"variant": "mixed_bfloat16", "format": "saved_model"},
    {"variant": "mixed_bfloat16", "format": "saved_model", "policy": "mixed_bfloat16"},
]


def test_models_that_were_served_in_16_bits_are_left_out() -> None:
    served = Served.of({"exports": [row | {"seed": 0} for row in ROWS]}, Path(SERVING))
    assert list(served.by_row) == [("mixed_bfloat16", "litert"), ("mixed_bfloat16", "saved_model")]
    serving = Serving.model_validate({"weights": "float32", "sentence": "", "rows": ROWS})
    assert [row.format for row in serving.rows] == ["litert", "saved_model"]
