"""The report's section on the account: a waterfall from the baseline's step to the candidate's and on to the limit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from halfstep.compare.report.charts import Axis
from halfstep.compare.text import KIND_NAMES
from halfstep.results.comparison import Account, Candidate, Change, KindChange
from halfstep.text import TRAIN, decimals, joined, ms_text, signed

_SMALL = 0.01  # of the baseline's step: kinds that change by less, and may not change, are one row
_HELD = 0.1  # of what the limit would still allow: kinds that hold less are not listed


@dataclass(frozen=True)
class Bar:
    """A bar of the waterfall; positions in percent.

    Attributes:
        is_known: false for a change that may be noise; of parts by Holm's method, as in the sentences.
        low, high: ends of its interval, from where it begins; None for a whole step.
    """

    label: str
    text: str
    start: float
    width: float
    look: Literal["step", "gained", "lost", "limit"]
    is_known: bool = True
    low: float | None = None
    high: float | None = None


def waterfall(variant: str, baseline: str, candidate: Candidate) -> dict[str, Any] | None:
    """The bars of a candidate; None without an account."""
    account = candidate.training_account
    if account is None:
        return None
    speedup = candidate.speedups[TRAIN]
    before_ms, after_ms = speedup.baseline_time_ms, speedup.candidate_time_ms
    changes = list(_changes(account, before_ms))
    digits = decimals(before_ms, after_ms) + 1
    axis = Axis(0.0, 1.02 * max([before_ms, after_ms, *_tops(before_ms, [change for _, change in changes])]))
    bars = [_step(axis, baseline, before_ms)]
    clock_ms = before_ms
    for label, change in changes:
        bars.append(_change(axis, label, clock_ms, change, digits))
        clock_ms += change.delta
    bars.append(_step(axis, variant, after_ms))
    limit = (candidate.limit or {}).get("train")
    if limit is not None and before_ms / limit < after_ms:
        limit_ms = before_ms / limit
        start = axis.at(limit_ms)
        text = f"{signed(limit_ms - after_ms, digits)} ms"
        bars.append(Bar("what the limit would still allow", text, start, round(axis.at(after_ms) - start, 2), "limit"))
    return {
        "variant": variant,
        "bars": bars,
        "ticks": [(axis.at(tick), f"{tick:g} ms") for tick in axis.ticks(4)],
        "held": _held(account, after_ms, limit, before_ms),
        "repeats": account.repeats,
        "control": None if account.control is None else f"{_number(account.control, digits)} ms",
        "profiler": f"{_percent(account.profiler_ms.baseline, account.calm.baseline_ms)} of a step of {baseline}, "
        f"{_percent(account.profiler_ms.candidate, account.calm.candidate_ms)} of one of {variant}",
        "void": account.void,
        "classes": [
            {
                "label": f"{found.layers} {found.layer_class}: {KIND_NAMES[found.kind]}",
                "text": f"{_number(found, digits)} ms",
            }
            for found in account.classes or ()
        ],
    }


def _changes(account: Account, step_ms: float) -> Iterator[tuple[str, Change]]:
    """The rows between the two steps: gains, losses, what is small, disturbances, what is unexplained."""
    kinds = sorted(account.kinds, key=lambda kind: kind.delta)
    small = [kind for kind in kinds if kind.holds_0 and abs(kind.delta) < _SMALL * step_ms]
    for kind in (kind for kind in kinds if kind not in small):
        yield KIND_NAMES[kind.kind], kind
    if small:
        delta = sum(kind.delta for kind in small)
        half = sum((kind.high - kind.low) ** 2 for kind in small) ** 0.5 / 2
        names = f"{len(small)} other parts" if len(small) > 1 else KIND_NAMES[small[0].kind]
        yield names, Change(value=delta, low=delta - half, high=delta + half)
    yield "disturbances of the machine", account.disturbance
    yield "unexplained", account.unexplained


def _tops(clock_ms: float, changes: list[Change]) -> Iterator[float]:
    for change in changes:
        yield clock_ms + max(change.high, change.delta)
        clock_ms += change.delta


def _step(axis: Axis, label: str, time_ms: float) -> Bar:
    return Bar(label, ms_text(time_ms), 0.0, axis.at(time_ms), "step")


def _change(axis: Axis, label: str, clock_ms: float, change: Change, digits: int) -> Bar:
    left, right = sorted((axis.at(clock_ms), axis.at(clock_ms + change.delta)))
    return Bar(
        label,
        _number(change, digits),
        left,
        round(right - left, 2),
        "gained" if change.delta < 0 else "lost",
        is_known=bool(change.named) if isinstance(change, KindChange) else not change.holds_0,
        low=axis.at(clock_ms + change.low),
        high=axis.at(clock_ms + change.high),
    )


def _percent(part_ms: float, step_ms: float) -> str:
    return f"{signed(100 * part_ms / step_ms, 1)} %"


def _number(change: Change, digits: int) -> str:
    return f"{signed(change.delta, digits)} ({signed(change.low, digits)} to {signed(change.high, digits)})"


def _held(account: Account, after_ms: float, limit: float | None, before_ms: float) -> str | None:
    """Which kinds take longer than the limit would leave them."""
    if limit is None or before_ms / limit >= after_ms:
        return None
    still_ms = after_ms - before_ms / limit
    found = [(kind, _above_limit(kind)) for kind in account.kinds]
    shown = sorted((item for item in found if item[1] >= _HELD * still_ms), key=lambda item: -item[1])
    texts = [f"{KIND_NAMES[kind.kind]} {ms_text(held_ms)}" for kind, held_ms in shown]
    return f"Above the limit are {joined(texts)}." if texts else None


def _above_limit(kind: KindChange) -> float:
    return 0.0 if kind.limit_ms is None else kind.candidate_ms - kind.limit_ms
