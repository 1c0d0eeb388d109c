"""Reasons about settings that a variant leaves alone."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest

from halfstep.compare.case import Case
from halfstep.compare.rules.overhead import step_overhead
from halfstep.compare.rules.settings import onednn_off
from halfstep.results.profile import HOST, AccountRow, Profile, Round
from tests.small_study import given, profile


def accounted(idle_ms: float, *, noise: float = 0.02, repeats: int = 4, profiler_ms: float = 0.0) -> Profile:
    """A profile whose steps of 10 ms have no operation for so long, and take so much longer in a trace."""
    rows, rounds = [], []
    for repeat in range(repeats):
        factor = 1 + noise * (1 if repeat % 2 else -1)
        parts = {"convolution": 10 - idle_ms, HOST: factor * idle_ms + profiler_ms}
        rows += [AccountRow(repeat, kind, "", "", "", "", time_ms) for kind, time_ms in parts.items()]
        step_ms = 10 - idle_ms + factor * idle_ms
        rounds += [Round(repeat, number, 0, 3, 3 * step_ms) for number in range(4)]
    tables = [pd.DataFrame([vars(row) for row in records]) for records in (rows, rounds)]
    return replace(profile(), account=tables[0], rounds=tables[1])


def alone(candidate: Profile) -> Case:
    return Case.alone(candidate, {"gpus": []})


@pytest.mark.parametrize(
    ("found", "is_given"),
    [
        (accounted(4.0), True),
        (accounted(1.0), False),
        (accounted(4.0, noise=0.9), False),  # which may be less
        (accounted(4.0, repeats=1), False),
        (accounted(4.0, profiler_ms=0.5), True),
        (accounted(1.0, profiler_ms=3.0), False),
        (profile(), False),
    ],
)
def test_steps_in_which_nothing_runs_are_a_reason_for_larger_ones(found: Profile, is_given: bool) -> None:
    reason = step_overhead(alone(found))
    assert (reason is not None) is is_given
    if reason is not None:
        assert reason.evidence["share"] == pytest.approx(0.4, abs=0.01)
        assert reason.change is not None
        assert (reason.change.key, reason.change.to, reason.change.at_most) == (
            "variants.float32.batch_size",
            128,
            None,
        )
        assert [change.key for change in reason.more_changes or ()] == ["variants.float32.xla"]


def test_onednn_that_is_off_is_a_reason_by_itself_only() -> None:
    rounds = pd.DataFrame({"process": [0]})
    off = replace(profile(entry={"onednn": False}), rounds=rounds)
    reason = onednn_off(alone(off))
    assert reason is not None
    assert reason.change is not None
    assert (reason.change.key, reason.change.before, reason.change.to) == ("variants.float32.onednn", False, True)
    assert onednn_off(alone(replace(profile(), rounds=rounds))) is None
    assert onednn_off(given(alone(off), baseline=profile())) is None  # then the difference itself is a reason
