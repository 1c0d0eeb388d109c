"""Numbers as text, for every message and report."""

from __future__ import annotations

import math

DIGITS = 3


def number_text(value: float) -> str:
    """A measured number with three significant digits and no exponent, such as `1,300`, `13.0` or `0.00155`."""
    if not math.isfinite(value) or value == 0:
        return f"{value:g}"
    return f"{float(f'{value:.{DIGITS}g}'):,.{decimals(value)}f}"


def decimals(*values: float) -> int:
    """Decimal places with which the largest of some numbers has three significant digits."""
    rounded = float(f"{max(map(abs, values)):.{DIGITS}g}")
    return max(0, DIGITS - 1 - math.floor(math.log10(rounded))) if rounded else 0


def signed_text(value: float) -> str:
    """The same with its sign, a true minus sign for negative numbers, and none for zero."""
    text = number_text(abs(value))
    return text if not float(text.replace(",", "")) else f"{'+' if value > 0 else '−'}{text}"


def ms_text(time_ms: float) -> str:
    """A time, such as `4.95 ms`."""
    return f"{number_text(time_ms)} ms"


def percent_text(share: float, digits: int = 0) -> str:
    """A share, such as `14 %`."""
    return f"{100 * share:.{digits}f} %"
