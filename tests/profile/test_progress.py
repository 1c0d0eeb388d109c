"""What is printed while a measurement runs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from halfstep.profile import progress
from halfstep.profile.progress import Progress
from halfstep.system import telling


def test_time_that_is_left_falls_within_a_repeat(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The schedule knows it by whole repeats."""
    clock = SimpleNamespace(now_s=100.0)
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: clock.now_s))
    plan = SimpleNamespace(interleaved=True, fewest_repeats=3)
    schedule: Any = SimpleNamespace(plan=plan, expected_s=60, expected_left_s=60.0)
    measurement: Any = SimpleNamespace(repeats=0)
    printer = Progress(measurement, schedule, ["float32", "mixed_bfloat16"], "float32", "profile")
    for name, value in telling.ASKED.items():
        monkeypatch.setenv(name, value)
    printer.begin()
    for clock.now_s in (110.0, 120.0, 130.0, 150.0, 170.0):
        printer.tick()
    told = [text for line in capsys.readouterr().out.splitlines() if (text := telling.told(line))]
    assert told[-3:] == ["repeat 1; about 30 s left", "repeat 1; about 10 s left", "repeat 1"]
