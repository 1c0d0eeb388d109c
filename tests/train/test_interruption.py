from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from halfstep.train.interruption import GRACE_S, TIMEOUT_CALLBACK_S, Interruption


@pytest.mark.parametrize(
    ("number", "kind", "status"), [(signal.SIGTERM, SystemExit, 143), (signal.SIGINT, KeyboardInterrupt, None)]
)
def test_signal_is_deferred_and_then_raised(number: int, kind: type[BaseException], status: int | None) -> None:
    interruption, before = Interruption(), signal.getsignal(number)
    with interruption.deferred():
        assert not interruption.requested
        signal.raise_signal(number)
        assert interruption.requested
    assert signal.getsignal(number) == before
    with pytest.raises(kind) as caught:
        interruption.raise_for_signal()
    assert getattr(caught.value, "code", None) == status


def test_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        interruption = Interruption()
        with interruption.deferred():
            signal.raise_signal(signal.SIGINT)
        assert not interruption.requested
    finally:
        signal.signal(signal.SIGINT, before)


STUCK = """
    import time
    from halfstep.train import interruption as module

    module.GRACE_S, module.TIMEOUT_CALLBACK_S = 0.3, 0.3
    interruption = module.Interruption()
    interruption.on_timeout = lambda: (print("timeout", flush=True), time.sleep(60))
    with interruption.time_limit(), interruption.deferred():
        print("stuck", flush=True)
        end = time.monotonic() + 60
        while time.monotonic() < end:
            time.sleep(1)
"""


def test_process_ends_although_its_step_does_not(root: Path) -> None:
    assert GRACE_S + TIMEOUT_CALLBACK_S < 10
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
    output, _ = process.communicate(timeout=20)
    assert output == "timeout\n"
    assert process.returncode == 143
    assert time.monotonic() - started_s < 15


def test_time_limit_restores_the_wakeup_descriptor() -> None:
    before = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(before)
    with Interruption().time_limit():
        pass
    assert signal.set_wakeup_fd(before) == before
