"""When a cause that the traces name is confirmed."""

from __future__ import annotations

import pytest

from halfstep.results.confirmation import Confirmation, Intervention


@pytest.mark.parametrize(
    ("value", "low", "high", "outcome"),
    [
        (0.9, 0.7, 1.1, "confirmed"),
        (0.5, 0.1, 0.9, "confirmed"),
        (0.49, 0.1, 0.9, "undecided"),
        (0.9, -0.1, 1.9, "undecided"),
        (0.2, 0.1, 0.49, "refuted"),
        (-0.2, -0.5, 0.1, "refuted"),
        (0.0, -0.6, 0.6, "undecided"),
    ],
)
def test_outcome(value: float, low: float, high: float, outcome: str) -> None:
    change = Intervention(variant="mixed_bfloat16", layers=("norm",), promised_ms=1.0)
    assert Confirmation(intervention=change, value=value, low=low, high=high, repeats=3).outcome == outcome
