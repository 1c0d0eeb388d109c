"""One line a training."""

from __future__ import annotations

import pytest

from stages.fleet.cluster import Job
from stages.fleet.progress import Progress, shown_line

NAME = "train float32 seed 0"


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (
            f"{NAME}: epoch 1/8: loss 1.2345, accuracy 0.5000, val_loss 1.1000, val_accuracy 0.6000, 1.2 s",
            "epoch 1/8, val_accuracy 0.6000",
        ),
        (f"{NAME}: epoch 2/8: loss 1.2345, val_loss nan, 1.2 s", "epoch 2/8, val_loss nan"),
        (f"{NAME}: epoch 2/8: loss 1e-05, 1.2 s", "epoch 2/8, loss 1e-05"),
        (f"{NAME}: test accuracy 0.9825, 21.3 s", "test accuracy 0.9825, 21.3 s"),
        (f"{NAME}: resumed from step 70, in epoch 2/8", "resumed from step 70, in epoch 2/8"),
        ("train float32 seed 01: epoch 1/8: loss 1.0, 1.2 s", None),
        ("Running stage 'train@float32-0':", None),
    ],
)
def test_shown_line(line: str, shown: str | None) -> None:
    assert shown_line(NAME, line) == shown


def test_a_line_at_each_change(capsys: pytest.CaptureFixture[str]) -> None:
    job = Job(NAME, "module")
    with Progress([job]) as progress:
        progress.on_event(job, "started", "gpu-1")
        progress.on_event(job, "line", f"{NAME}: test accuracy 0.9825, 21.3 s")
        progress.on_event(job, "line", "DVC says something")
        progress.on_event(job, "retry", "retry 1 of 2: its machine was lost")
        progress.on_event(job, "started", "gpu-2")
        progress.on_event(job, "line", f"{NAME}: test accuracy 0.9825, 21.3 s")
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
