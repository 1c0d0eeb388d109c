"""The report's section on speed: intervals with their factors, what disturbed them, and the tests of the verdicts."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

from stages.compare.comparison import TRAIN, Candidate, Comparison
from stages.compare.report.charts import Axis, Interval, interval
from stages.compare.report.text import p_text, ratio_text, timed_label, verdict_text
from stages.stats.speedup import Speedup
from stages.text import ms_text


def speed(comparison: Comparison) -> dict[str, Any] | None:
    """Speed-ups by measure on one logarithmic axis, with the noise floor of each measure."""
    measures = list(dict.fromkeys(measure for item in comparison.candidates for measure in item.speedups))
    if not measures:
        return None
    required = comparison.params.min_speedup
    axis = Axis.around([1.0, required, *_ends(comparison)], logarithmic=True)
    return {
        "groups": [_group(measure, comparison, axis) for measure in measures],
        "ticks": [(axis.at(tick), f"{tick:g}×") for tick in axis.ticks()],
        "one": axis.at(1.0),
        "required": axis.at(required),
        "required_text": f"{required:g}×",
        "has_factors": any(candidate.factors for candidate in comparison.candidates),
        "tests": [row for candidate in comparison.candidates for row in _test_rows(candidate, comparison.speed_only)],
    }


def limits(comparison: Comparison) -> list[dict[str, str]]:
    """The speed-up of training and the limit of the baseline's trace."""
    return [
        {"variant": item.variant, "reached": ratio_text(item.speedups[TRAIN]), "limit": f"{item.limit:.2f}×"}
        for item in comparison.candidates
        if item.limit is not None
    ]


def _ends(comparison: Comparison) -> Iterator[float]:
    """Everything that the axis must contain."""
    for control in comparison.control.values():
        yield 1 + control.noise_floor
    for candidate in comparison.candidates:
        parts = chain.from_iterable((item.settings, item.precision) for item in candidate.factors.values())
        for speedup in (*candidate.speedups.values(), *parts):
            yield from (speedup.low, speedup.high)


def _group(measure: str, comparison: Comparison, axis: Axis) -> dict[str, Any]:
    control = comparison.control.get(measure)
    floor = control.noise_floor if control else 0.0
    start = axis.at(max(1 - floor, axis.low))
    compared = [item for item in comparison.candidates if measure in item.speedups]
    return {
        "label": timed_label(measure),
        "control_text": f"control {ratio_text(control)}, noise floor {100 * floor:.1f} %" if control else "no control",
        "floor_start": start,
        "floor_width": round(axis.at(1 + floor) - start, 2),
        "throttled": measure in comparison.throttled,
        "differs": measure in comparison.differing,
        "intervals": list(chain.from_iterable(_intervals(item, measure, axis) for item in compared)),
        "notes": list(chain.from_iterable(_notes(item, measure, comparison) for item in compared)),
    }


def _intervals(candidate: Candidate, measure: str, axis: Axis) -> Iterator[Interval]:
    """The speed-up, and its factors below it."""
    is_adopted = candidate.verdicts[measure] in ("adopt", "faster")
    yield _interval(axis, candidate.variant, candidate.speedups[measure], is_adopted)
    if (factors := candidate.factors.get(measure)) is not None:
        yield _interval(axis, "= settings", factors.settings, is_factor=True)
        yield _interval(axis, "× precision", factors.precision, is_factor=True)


def _interval(axis: Axis, label: str, found: Speedup, good: bool = False, *, is_factor: bool = False) -> Interval:
    estimate = (found.ratio, found.low, found.high)
    return interval(axis, label, ratio_text(found), estimate, good, is_factor=is_factor)


def _notes(candidate: Candidate, measure: str, comparison: Comparison) -> Iterator[str]:
    """What disturbed a speed-up: stalls, and a machine in two states."""
    speedup, baseline = candidate.speedups[measure], comparison.study.baseline.variant
    if any(reason.code == "stalls" and reason.measure == measure for reason in candidate.reasons):
        yield (
            f"{candidate.variant}: {speedup.ratio:.2f}× counts stalls. The ratio of typical steps, which stalls do not "
            f"change, is {speedup.typical_ratio:.2f}×."
        )
    states = [
        f"{state.ratio:.2f}× ({state.low:.2f} to {state.high:.2f}) in the {state.rounds:,} rounds in which a step of "
        f"{baseline} took {ms_text(state.baseline_time_ms)}"
        for state in candidate.states.get(measure, ())
    ]
    if states:
        yield f"{candidate.variant}: the machine was in two states. The speed-up was {', and '.join(states)}."


def _test_rows(candidate: Candidate, speed_only: bool) -> Iterator[dict[str, Any]]:
    """What the verdict on each measure rests on. Verdicts on speed only have no p-values."""
    for measure, speedup in candidate.speedups.items():
        test = candidate.tests.get(measure)
        p_values = [] if test is None else [p_text(test.p), p_text(test.p_adjusted)]
        yield {
            "variant": candidate.variant,
            "measure": timed_label(measure),
            "cells": (
                ms_text(speedup.baseline_time_ms),
                ms_text(speedup.candidate_time_ms),
                ratio_text(speedup),
                f"{speedup.typical_ratio:.2f}×",
                *p_values,
                verdict_text(candidate.verdicts[measure], speed_only=speed_only),
            ),
        }
