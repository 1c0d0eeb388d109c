"""What the protocol warns of: a trend is said where it moves a speed-up, and by how much."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from halfstep.profile.protocol import _drift_warnings
from halfstep.profile.records import ArmRecord
from halfstep.profile.steady_state import mark_counted
from halfstep.results.profile import Round
from tests.profile.arm_records import arm_record

RISING = [10.0 * 1.01**number for number in range(12)]  # 5.7 % from the middle of the first to that of the second half


def arms(candidate: Sequence[float], baseline: Sequence[float] = RISING) -> dict[str, ArmRecord]:
    """Two arms whose rounds take these times in each of three repeats."""
    records = {"float32": arm_record(), "mixed_bfloat16": arm_record("mixed_bfloat16")}
    for record, times_ms in zip(records.values(), (baseline, candidate), strict=True):
        record.times.rounds = [
            Round(repeat, number, 0, 2, time_ms) for repeat in range(3) for number, time_ms in enumerate(times_ms)
        ]
    return records


def warnings(records: dict[str, ArmRecord]) -> list[str]:
    return list(_drift_warnings(mark_counted(records), 3, records, "float32"))


def test_trend_in_all_arms_alike_is_not_worth_a_word() -> None:
    records = arms([time_ms / 2 for time_ms in RISING])
    assert mark_counted(records) == 3
    assert warnings(records) == []


@pytest.mark.parametrize(("slope", "is_said"), [(0.0, True), (0.85, False)], ids=["3 %", "less than 1 %"])
def test_trend_of_one_arm_is_said_with_what_it_moves(slope: float, is_said: bool) -> None:
    """The baseline becomes slower by 1 % a round; the candidate by less."""
    candidate = [10.0 * 1.01 ** (slope * number) for number in range(12)]
    messages = warnings(arms(candidate))
    assert len(messages) == is_said
    if is_said:
        assert messages[0].startswith(
            "the step times of 3 of 3 repeats still changed during the counted rounds: by the later half of these, the "
            "speed-up of mixed_bfloat16 would be 1.09× in place of 1.06×"
        )


def test_trend_of_a_single_repeat_is_not_said() -> None:
    records = arms([10.0] * 12)
    assert list(_drift_warnings(1, 3, records, "float32")) == []
    assert len(list(_drift_warnings(2, 3, records, "float32"))) == 1
