"""Each call to a server ends in time."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from halfstep.errors import TrackingError
from halfstep.params import TrackingParams
from halfstep.tracking import client, deadline
from halfstep.tracking.active_run import first_line
from halfstep.tracking.tracker import Tracker
from tests.faults.servers import drip, hang, redirect, serving


def test_result_and_error_of_a_call_are_passed_on() -> None:
    assert deadline.call_within(5.0, lambda: 3) == 3
    with pytest.raises(ZeroDivisionError):
        deadline.call_within(5.0, lambda: 1 // 0)
    with pytest.raises(TimeoutError, match="of the function"):
        deadline.call_within(5.0, lambda: _raise(TimeoutError("of the function")))


def _raise(error: Exception) -> None:
    raise error


def test_late_call_ends_at_the_deadline() -> None:
    release = threading.Event()
    with pytest.raises(deadline.DeadlineError, match=r"no answer within 0\.1 s"):
        deadline.call_within(0.1, release.wait)
    release.set()


@pytest.mark.parametrize("trouble", [hang, drip, redirect])
def test_server_that_never_ends_its_response_is_left(trouble: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadline, "DEADLINE_S", 0.5)
    started_s = time.monotonic()
    with serving(trouble) as server, pytest.raises(TrackingError, match=r"no answer within 0\.5 s"):
        Tracker(TrackingParams(uri=server.uri))
    assert time.monotonic() - started_s < 4.0


def test_late_call_does_not_keep_the_process_alive(root: Path) -> None:
    code = (
        "import time\nfrom halfstep.tracking import deadline\n"
        "try:\n    deadline.call_within(0.1, lambda: time.sleep(60))\n"
        "except deadline.DeadlineError as error:\n    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("no answer within 0.1 s\n", "")


def test_upload_gets_time_for_each_byte(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for name in ("a", "folder/b"):
        with (tmp_path / name).open("wb") as stream:
            stream.truncate(1_000_000)
    limits = [
        client.call_limit_s("log_artifact", ("run", str(tmp_path / "a"), None)),
        client.call_limit_s("log_artifacts", ("run", str(tmp_path), None)),
        client.call_limit_s("log_batch", ("run",)),
    ]
    assert limits == [deadline.DEADLINE_S + 4.0, deadline.DEADLINE_S + 8.0, deadline.DEADLINE_S]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("\u001b[2Jcleared\nsecond", "\\x1b[2Jcleared"),
        ("first\u2028second", "first"),
        ("bell\a and \u202e", "bell\\x07 and \\u202e"),
        ("é 漢 …", "é 漢 …"),
        ("", "ValueError"),
    ],
)
def test_text_of_a_server_is_one_printable_line(text: str, line: str) -> None:
    assert first_line(ValueError(text)) == line
