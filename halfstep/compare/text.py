"""Ratios, verdicts and p-values as text, the same in sentences, in the terminal and in the reports."""

from __future__ import annotations

from typing import Protocol

from halfstep.results.comparison import Verdict
from halfstep.results.profile import HOST

SYNTHETIC_NOTE = "Measured on synthetic images: this run measures speed only, and its accuracy has no meaning."
_SPEED_ONLY = "Speed only: {}, so the verdicts say nothing about quality."
SPEED_ONLY_NOTE = _SPEED_ONLY.format("nothing was trained (train.epochs is 0)")
SAME_TIME = 0.005  # a change of time that rounds to 0 %
KIND_NAMES = {
    "input": "the input pipeline",
    "cast": "casts",
    "random": "random numbers",
    "loss_scaling": "loss scaling",
    "optimizer": "the optimizer",
    "attention": "attention layers",
    "recurrent": "recurrent layers",
    "normalization": "normalization",
    "convolution": "convolutions",
    "matrix_product": "matrix products",
    "memory": "memory-bound operations",
    "other": "other operations",
    HOST: "idle time",
}


class _RatioLike(Protocol):  # with its interval, while it is judged and in the document
    @property
    def ratio(self) -> float: ...
    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float: ...


def interval_text(speedup: _RatioLike) -> str:
    """The interval of a ratio, such as `1.57 to 1.63`; of two repeats that disagree, such as `0.02 to 4,310`."""
    low, high = (f"{end:.2f}" if end < 100 else f"{end:,.0f}" for end in (speedup.low, speedup.high))
    return f"{low} to {high}"


def ratio_text(speedup: _RatioLike) -> str:
    """The ratio with its interval, such as `1.60× (1.57 to 1.63)`."""
    return f"{speedup.ratio:.2f}× ({interval_text(speedup)})"


def large_ratio_text(ratio: float, low: float, high: float) -> str:
    """A ratio that may be large, with its interval, such as `65.2× (57.0 to 74.5)`: three digits."""
    digits = 2 if ratio < 10 else 1 if ratio < 100 else 0
    return f"{ratio:.{digits}f}× ({low:.{digits}f} to {high:.{digits}f})"


def time_text(ratio: float) -> str:
    """What a speed-up means in words, which are always about the time, never about the speed.

    Above 1 it `takes 22 % less time` (1.28×: 1 − 1 / 1.28), below 1 it `takes 5 % longer` (0.95×: 1 / 0.95 − 1), and
    from twice the time on it `takes 4.0 times as long` (0.25×). A change that rounds to 0 % `takes the same time`.

    Args:
        ratio: time of the baseline / time of the candidate.
    """
    change = 1 / ratio - 1
    if abs(change) < SAME_TIME:
        return "takes the same time"
    if change < 0:
        return f"takes {-100 * change:.0f} % less time"
    return f"takes {100 * change:.0f} % longer" if change < 1 else f"takes {1 + change:.1f} times as long"


def step_clause(speedup: _RatioLike, *, per_example: bool = False) -> str:
    """What a speed-up of training is about, such as `a training step takes 4 % longer (speed-up 0.96×, 0.94 to 0.98)`.

    Where it is not clear which of the two takes longer, only the speed-up is given. A whole training also validates,
    ends epochs and starts; its time is a row of its own.

    Args:
        speedup: of training.
        per_example: whether the steps have other numbers of examples.
    """
    subject = "training on an example" if per_example else "a training step"
    if speedup.low < 1 < speedup.high:
        return f"the speed-up of {subject} is {ratio_text(speedup)}"
    return f"{subject} {time_text(speedup.ratio)} (speed-up {speedup.ratio:.2f}×, {interval_text(speedup)})"


def verdict_text(verdict: Verdict, *, speed_only: bool | None) -> str:
    """A verdict as it is shown, such as `adopt`, or `faster, speed only` where nothing was trained."""
    return f"{verdict}, speed only" if speed_only else verdict


def speed_only_note(why: str | None) -> str:
    """That the verdicts say nothing about quality, and why; None: as documents of earlier releases, of no training."""
    return SPEED_ONLY_NOTE if why is None else _SPEED_ONLY.format(why)


def p_text(p: float) -> str:
    """A p-value with two digits; very small ones are cut off."""
    return "< 0.0001" if p < 0.0001 else f"{p:.2g}"
