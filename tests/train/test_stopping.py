from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from stages.train.stopping import GRACE_S, LAST_WORDS_S, Stop


@pytest.mark.parametrize(
    ("number", "kind", "status"), [(signal.SIGTERM, SystemExit, 143), (signal.SIGINT, KeyboardInterrupt, None)]
)
def test_a_signal_is_put_off_and_then_obeyed(number: int, kind: type[BaseException], status: int | None) -> None:
    stop, before = Stop(), signal.getsignal(number)
    with stop.deferred():
        assert not stop.requested
        signal.raise_signal(number)
        assert stop.requested
    assert signal.getsignal(number) == before
    with pytest.raises(kind) as caught:
        stop.obey()
    assert getattr(caught.value, "code", None) == status


def test_a_signal_that_is_ignored_stays_so(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        stop = Stop()
        with stop.deferred():
            signal.raise_signal(signal.SIGINT)
        assert not stop.requested
    finally:
        signal.signal(signal.SIGINT, before)


STUCK = """
    import time
    from stages.train import stopping

    stopping.GRACE_S, stopping.LAST_WORDS_S = 0.3, 0.3
    stop = stopping.Stop()
    stop.last_words = lambda: (print("last words", flush=True), time.sleep(60))
    with stop.bounded(), stop.deferred():
        print("stuck", flush=True)
        end = time.monotonic() + 60
        while time.monotonic() < end:
            time.sleep(1)
"""


def test_a_step_that_does_not_end_ends_all_the_same(root: Path) -> None:
    assert GRACE_S + LAST_WORDS_S < 10
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(STUCK)],
        env=os.environ | {"PYTHONPATH": str(root)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "stuck\n"
    started_s = time.monotonic()
    process.terminate()
    said, _ = process.communicate(timeout=20)
    assert said == "last words\n"
    assert process.returncode == 143
    assert time.monotonic() - started_s < 15


def test_nothing_is_left_behind_where_no_signal_comes() -> None:
    before = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(before)
    with Stop().bounded():
        pass
    assert signal.set_wakeup_fd(before) == before
