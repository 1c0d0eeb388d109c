"""What older releases wrote of formats is read."""

from __future__ import annotations

from typing import Any

from halfstep.results.comparison import Serving
from halfstep.results.serving import Export, Served, ServedArm

ROWS: list[dict[str, Any]] = [
    {"variant": "mixed_bfloat16", "format": "litert", "refused_in": "mixed_bfloat16", "own_refusal": "LiteRT: no"},
    {"variant": "mixed_bfloat16", "format": "saved_model"},
    {"variant": "mixed_bfloat16", "format": "saved_model", "policy": "mixed_bfloat16"},
]


def test_models_that_were_served_in_16_bits_are_left_out() -> None:
    serving = Serving.model_validate({"weights": "float32", "sentence": "", "rows": ROWS})
    assert [row.format for row in serving.rows] == ["litert", "saved_model"]


def test_rows_of_each_format_have_its_arms_and_one_without_where_it_was_not_timed() -> None:
    exports = tuple(Export(variant="a", seed=seed, format=name) for seed in (0, 1) for name in ("onnx", "litert"))
    served = Served(exports=exports, arms=(ServedArm(format="onnx"), ServedArm(format="onnx", threads=1)))
    rows = [([item.seed for item in items], items[0].format, arm and arm.name) for items, arm in served.rows]
    assert rows == [([0, 1], "onnx", "onnx"), ([0, 1], "onnx", "onnx.1-thread"), ([0, 1], "litert", None)]
    assert served.timed == ("keras", "onnx", "onnx.1-thread")
