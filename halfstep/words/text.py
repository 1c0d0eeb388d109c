"""Numbers and names as text, for every message and report."""

from __future__ import annotations

import math
from collections.abc import Sequence

DIGITS = 3
MIB = 2**20  # bytes
LONGER = "To measure that long,"  # so the step begins that says how


def measure_again(stage: str) -> str:
    """The command that measures anew."""
    return f"dvc repro -f -s {stage} && dvc repro"


MEASURE_AGAIN = measure_again("profile")
TRAIN = "train"  # the measure; those of inference are `inference_b<n>`
_INFERENCE = "inference_b"


def yaml_text(value: bool | float | str | Sequence[str] | None) -> str:
    """A value as it stands in params.yaml."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(value)}]"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


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


def end_text(ratio: float) -> str:
    """An end of the interval of a ratio, such as `1.57`; of two repeats that disagree, such as `4,310`."""
    return f"{ratio:.2f}" if ratio < 100 else f"{ratio:,.0f}"


def percent_text(share: float, digits: int = 0) -> str:
    """A share, such as `14 %`."""
    return f"{100 * share:.{digits}f} %"


def signed(value: float, digits: int) -> str:
    """A number with its sign, a true minus sign for negative ones, and none for zero."""
    rounded = round(value, digits)
    sign = "" if rounded == 0 else "+" if rounded > 0 else "−"
    return f"{sign}{abs(rounded):,.{digits}f}"


def capitalized(text: str) -> str:
    """A text as a sentence begins; the rest of it stays as it is."""
    return text[:1].upper() + text[1:]


def joined(items: Sequence[str]) -> str:
    """`a`, `a and b`, or `a, b and c`; empty without items."""
    return " and ".join([", ".join(items[:-1]), items[-1]] if len(items) > 1 else items)


def inference_measure(batch_size: int) -> str:
    """Name of the measure of inference at a batch size."""
    return f"{_INFERENCE}{batch_size}"


def batch_size_of(measure: str) -> int | None:
    """Batch size of a measure of inference; None for training."""
    return None if measure == TRAIN else int(measure.removeprefix(_INFERENCE))


def measure_text(measure: str) -> str:
    """A measure in a sentence: `training`, or `inference at batch size 1`."""
    return "training" if measure == TRAIN else f"inference at batch size {batch_size_of(measure)}"


def measure_label(measure: str) -> str:
    """What a verdict or a reason is about: `training`, or `inference, batch 1`."""
    return "training" if measure == TRAIN else f"inference, batch {batch_size_of(measure)}"


def timed_label(measure: str) -> str:
    """What was timed for a measure; of a training, its steps."""
    return "training step" if measure == TRAIN else measure_label(measure)


def hours_text(seconds: float) -> str:
    """A long time, such as `12 min` or `5 h`."""
    return f"{seconds / 60:.0f} min" if seconds < 2 * 3600 else f"{seconds / 3600:.0f} h"
