"""The margin of quality: its default for accuracy, and what other scores must declare."""

from __future__ import annotations

import pytest

from halfstep.errors import ParameterError
from halfstep.params.loading import parse
from halfstep.params.margin import quality_margin_for
from halfstep.params.schema import CompareParams


@pytest.mark.parametrize(
    ("name", "declared", "line"),
    [
        (
            "iou",
            None,
            "compare.quality_margin is null, which only accuracy may leave so; declare the largest loss of iou",
        ),
        ("accuracy", 1.0, "compare.quality_margin is 1; for accuracy, a fraction, it must be above 0 and below 1"),
    ],
)
def test_margin_that_cannot_be_used(name: str, declared: float | None, line: str) -> None:
    with pytest.raises(ParameterError) as caught:
        quality_margin_for(name, CompareParams(quality_margin=declared))
    assert str(caught.value).startswith(line)
    assert "\n" not in str(caught.value)


def test_margin_of_images_is_checked_with_the_other_parameters() -> None:
    assert parse("compare: {quality_margin: null}").compare.quality_margin is None
    with pytest.raises(ParameterError, match=r"quality_margin is 1\.5; for accuracy, a fraction"):
        parse("compare: {quality_margin: 1.5}")
