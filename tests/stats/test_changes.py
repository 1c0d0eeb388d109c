"""Changes of times between two arms: their intervals hold the truth, and follow the rule of the speed-ups."""

from __future__ import annotations

import numpy as np
import pytest

from stages.stats.changes import Changes, paired_changes, unpaired_changes
from stages.stats.speedup import REPEAT_SD

TIMES = 2000


def drawn(repeats: int, turns: int, repeat_sd: float, turn_sd: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The repeat of each turn, and times around 20 ms."""
    draw = np.random.default_rng(seed)
    numbers = np.repeat(np.arange(repeats), turns)
    of_repeats = np.repeat(draw.normal(0, repeat_sd, (repeats, TIMES)), turns, axis=0)
    return numbers, 20 + of_repeats + draw.normal(0, turn_sd, (repeats * turns, TIMES))


def coverage(found: Changes, truth: float) -> float:
    return float((np.abs(found.deltas - truth) <= found.half_widths()).mean())


@pytest.mark.parametrize(("repeats", "turns"), [(4, 2), (5, 1), (3, 2), (5, 3)])
@pytest.mark.parametrize(("repeat_sd", "turn_sd"), [(0.0, 1.0), (0.7, 1.0), (2.0, 0.1)])
def test_interval_holds_the_truth(repeats: int, turns: int, repeat_sd: float, turn_sd: float) -> None:
    numbers, before = drawn(repeats, turns, repeat_sd, turn_sd, seed=0)
    _, after = drawn(repeats, turns, repeat_sd, turn_sd, seed=1)
    assert coverage(paired_changes(numbers, before, after + 5), 5.0) >= 0.925
    assert coverage(unpaired_changes(numbers, before, numbers, after + 5), 5.0) >= 0.925


def test_what_both_arms_share_in_a_turn_cancels() -> None:
    numbers = np.repeat(np.arange(4), 2)
    drift = np.arange(8.0)[:, None]
    found = paired_changes(numbers, 10 + drift, 12 + drift)
    assert found.deltas == pytest.approx([2.0])
    level = 11 + drift.mean()  # repeats may differ, even where these do not
    assert found.standard_errors == pytest.approx([level * REPEAT_SD * np.sqrt(2 / 4)])
    alone = unpaired_changes(numbers, 10 + drift, numbers, 12 + drift)
    assert alone.deltas == pytest.approx([2.0])
    assert alone.standard_errors[0] > 5 * found.standard_errors[0]


def test_what_no_step_has_does_not_change() -> None:
    nothing = np.zeros((4, 1))
    found = paired_changes(np.array([0, 0, 1, 1]), nothing, nothing)
    assert (found.deltas[0], found.half_widths()[0]) == (0.0, 0.0)


@pytest.mark.parametrize("repeats", [[0], [0, 0, 0]])
def test_single_repeat_shows_its_turns_or_nothing(repeats: list[int]) -> None:
    times = np.linspace(1, 2, len(repeats))[:, None]
    found = paired_changes(np.array(repeats), times, times[::-1] + 1)
    assert np.isfinite(found.half_widths()[0]) == (len(repeats) > 1)
    assert np.isinf(unpaired_changes(np.array(repeats), times, np.array(repeats), times).half_widths()[0])
