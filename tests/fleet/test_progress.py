"""One line a training."""

from __future__ import annotations

import pytest

from stages.fleet.cluster import Job
from stages.fleet.progress import JobProgress
from stages.telling import ASKED, say

NAME = "train float32 seed 0"


def test_a_line_at_each_change(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ASKED.items():
        monkeypatch.setenv(name, value)
    say(NAME, "test accuracy 0.9825, 21.3 s")
    printed = capsys.readouterr().out.splitlines()
    job = Job(NAME, "module")
    with JobProgress([job]) as progress:
        progress.on_event(job, "started", "gpu-1")
        for line in printed:
            progress.on_event(job, "line", line)
        progress.on_event(job, "line", "DVC says something")
        progress.on_event(job, "retry", "retry 1 of 2: its machine was lost")
        progress.on_event(job, "started", "gpu-2")
        for line in printed:
            progress.on_event(job, "line", line)
        progress.on_event(job, "ended", "")
        progress.on_event(job, "ended", "dvc push: 403 Forbidden \x1b[2J")
    lines = [line.split(" s  ", 1)[1] for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        f"{NAME} on gpu-1: started",
        f"{NAME} on gpu-1: test accuracy 0.9825, 21.3 s",
        f"{NAME} on gpu-1: retry 1 of 2: its machine was lost",
        f"{NAME} on gpu-2: started",
        f"{NAME} on gpu-2: test accuracy 0.9825, 21.3 s",
        f"{NAME} on gpu-2: test accuracy 0.9825, 21.3 s; pushed",
        f"{NAME} on gpu-2: failed: dvc push: 403 Forbidden \\x1b[2J",
    ]
