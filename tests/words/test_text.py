"""Numbers as text."""

from __future__ import annotations

import re

import numpy as np
import pytest

from halfstep.words.text import end_text, ms_text, number_text, signed_text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1300.4, "1,300"),
        (999.6, "1,000"),
        (9.996, "10.0"),
        (13.0, "13.0"),
        (0.79114, "0.791"),
        (0.0015499, "0.00155"),
        (-4.9531, "-4.95"),
        (123456.0, "123,000"),
        (0.0, "0"),
        (float("inf"), "inf"),
    ],
)
def test_numbers_have_three_digits(value: float, text: str) -> None:
    assert number_text(value) == text


@pytest.mark.parametrize(("ratio", "text"), [(0.0, "0.00"), (1.574, "1.57"), (99.5, "99.50"), (4310.2, "4,310")])
def test_end_of_an_interval_that_is_wide_open_has_no_decimals(ratio: float, text: str) -> None:
    assert end_text(ratio) == text


def test_shown_number_is_within_half_a_unit_of_its_third_digit_and_has_no_exponent() -> None:
    for value in np.random.default_rng(0).lognormal(0, 6, 500):
        text = number_text(value)
        assert "e" not in text
        assert float(text.replace(",", "")) == pytest.approx(value, rel=0.0051)
        assert len(re.sub(r"^0*|[.,]", "", text.replace("0.", "")).lstrip("0").rstrip("0")) <= 3


def test_sign_is_a_true_minus_and_none_for_zero() -> None:
    assert [signed_text(value) for value in (1234.56, -0.0441, -2.0, 0.0)] == ["+1,230", "−0.0441", "−2.00", "0"]
    assert ms_text(4.9531) == "4.95 ms"
