"""The report's section on speed: intervals with their factors, what disturbed them, and the tests of the verdicts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

from halfstep.compare.report.charts import Axis, Interval, interval
from halfstep.compare.report.tables import at_equal_batch
from halfstep.compare.text import p_text, ratio_text, verdict_text
from halfstep.results.comparison import Candidate, Comparison, Control, Ratio
from halfstep.text import TRAIN, ms_text, timed_label


def speed(comparison: Comparison) -> dict[str, Any] | None:
    """Speed-ups by measure on one logarithmic axis."""
    candidates = at_equal_batch(comparison)
    measures = list(dict.fromkeys(measure for item in candidates.values() for measure in item.speedups))
    if not measures:
        return None
    required = comparison.min_speedup
    axis = Axis.around([1.0, required, *_ends(comparison)], logarithmic=True)
    rows = (_test_rows(name, item, comparison.speed_only) for name, item in candidates.items())
    return {
        "groups": [_group(measure, comparison, axis) for measure in measures],
        "ticks": [(axis.at(tick), f"{tick:g}×") for tick in axis.ticks()],
        "one": axis.at(1.0),
        "required": axis.at(required),
        "required_text": f"{required:g}×",
        "has_factors": any(item.factors for item in candidates.values()),
        "tests": list(chain.from_iterable(rows)),
    }


def limits(comparison: Comparison) -> list[dict[str, str]]:
    """The speed-up of training and the limit of the baseline's trace."""
    return [
        {"variant": name, "reached": ratio_text(item.speedups[TRAIN]), "limit": f"{item.limit['train']:.2f}×"}
        for name, item in comparison.candidates.items()
        if item.limit is not None
    ]


def _ends(comparison: Comparison) -> Iterator[float]:
    """Everything that the axis must contain."""
    for candidate in at_equal_batch(comparison).values():
        factors = (candidate.factors or {}).values()
        parts = chain.from_iterable((item.settings, item.precision) for item in factors)
        for found in (*candidate.speedups.values(), *parts):
            yield from (found.low, found.high)


def _group(measure: str, comparison: Comparison, axis: Axis) -> dict[str, Any]:
    control = comparison.control.get(measure)
    compared = {name: item for name, item in at_equal_batch(comparison).items() if measure in item.speedups}
    return {
        "label": timed_label(measure),
        "control_text": _control_text(control, list(compared.values()), measure),
        "is_void": comparison.is_void(measure),
        "intervals": [place for name, item in compared.items() for place in _intervals(name, item, measure, axis)],
        "notes": [text for item in compared.values() for text in item.speedups[measure].warnings or ()],
    }


def _control_text(control: Control | None, compared: Sequence[Candidate], measure: str) -> str:
    """The control and its noise floor, which is wide where the control has few rounds."""
    if control is None:
        return "without a control"
    most = max((item.speedups[measure].rounds for item in compared), default=0)
    found = f"two equal copies: {ratio_text(control)}, so noise is up to {100 * control.noise_floor:.1f} %"
    if control.rounds is None or control.rounds >= most:
        return found
    return f"{found}, by {control.rounds:,} rounds where a variant has up to {most:,}"


def _intervals(name: str, candidate: Candidate, measure: str, axis: Axis) -> Iterator[Interval]:
    """The speed-up, and its factors below it."""
    is_adopted = candidate.verdicts[measure] in ("adopt", "faster")
    yield _interval(axis, name, candidate.speedups[measure], is_adopted)
    if (factors := (candidate.factors or {}).get(measure)) is not None:
        yield _interval(axis, "= settings", factors.settings, is_factor=True)
        yield _interval(axis, "× precision", factors.precision, is_factor=True)


def _interval(axis: Axis, label: str, found: Ratio, good: bool = False, *, is_factor: bool = False) -> Interval:
    return interval(axis, label, ratio_text(found), found, good, is_factor=is_factor)


def _test_rows(name: str, candidate: Candidate, speed_only: bool | None) -> Iterator[dict[str, Any]]:
    """What the verdict on each measure rests on. Verdicts on speed only have no p-values."""
    for measure, speedup in candidate.speedups.items():
        test = (candidate.tests or {}).get(measure)
        p_values = [] if test is None else [p_text(test.p), p_text(test.p_adjusted)]
        yield {
            "variant": name,
            "measure": timed_label(measure),
            "cells": (
                verdict_text(candidate.verdicts[measure], speed_only=speed_only),
                ms_text(speedup.baseline_time_ms),
                ms_text(speedup.candidate_time_ms),
                ratio_text(speedup),
                f"{speedup.typical_ratio:.2f}×",
                *p_values,
            ),
        }
