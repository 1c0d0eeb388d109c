"""The account's rows of a repeat: only calm steps count, with and without the profiler."""

from __future__ import annotations

import random
from collections.abc import Sequence
from statistics import fmean

import pytest

from stages.profile.calm_steps import account_rows
from stages.profile.records import TracedPart, TracedStretch
from stages.results.profile import PROFILER, AccountRow, Round

SHARES = {"convolution": 0.75, "host": 0.25}


def rows_of(traced_ms: Sequence[float], untraced_ms: Sequence[float], steps: int = 1) -> list[AccountRow]:
    """Rows of repeat 1; repeat 0 was much slower."""
    stretches = [
        TracedStretch(step_ms, [TracedPart(kind, time_ms=share * step_ms) for kind, share in SHARES.items()])
        for step_ms in traced_ms
    ]
    rounds = [Round(0, 0, 0, steps, 1000.0 * steps)]
    rounds += [Round(1, number, 0, steps, step_ms * steps) for number, step_ms in enumerate(untraced_ms)]
    return list(account_rows(1, stretches, rounds))


def step_ms(rows: Sequence[AccountRow], turn: int = 0) -> float:
    return sum(row.time_ms for row in rows if row.turn == turn)


def test_rows_of_a_stretch_add_up_to_the_calm_step_without_the_profiler() -> None:
    rows = rows_of([12.0, 30.0, 12.4, 31.0, 12.2, 29.0, 12.6, 12.8], [10.0] * 8, steps=4)
    assert {(row.process, row.turn) for row in rows} == {(1, 0), (1, 1)}  # a quarter of eight
    assert [step_ms(rows, turn) for turn in (0, 1)] == pytest.approx([10.0, 10.0])
    assert [row.time_ms for row in rows if row.kind == PROFILER] == pytest.approx([-2.0, -2.2])
    assert [row.time_ms for row in rows if row.kind == "convolution"] == pytest.approx([9.0, 9.15])


def test_disturbed_steps_do_not_count() -> None:
    calm = rows_of([12.0] * 4, [10.0] * 8)
    disturbed = rows_of([12.0, 20.0, 40.0, 25.0], [10.0, 10.0, 10.0, 10.0, 10.0, 30.0, 25.0, 14.0])
    assert disturbed == calm


def test_calm_step_does_not_depend_on_the_number_of_rounds() -> None:
    """The copy of the baseline takes part in fewer rounds than the baseline."""
    draw = random.Random(0)
    means = [
        fmean(step_ms(rows_of([12.0], [draw.gauss(10.0, 1.0) for _ in range(rounds)])) for _ in range(2000))
        for rounds in (2, 4, 8, 40)
    ]
    assert means == pytest.approx([9.33] * 4, abs=0.15)  # the lower quartile


def test_single_stretch_counts() -> None:
    assert {row.turn for row in rows_of([12.0], [10.0])} == {0}
