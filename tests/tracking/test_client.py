"""A server that does not answer is left, and what it says is one line."""

from __future__ import annotations

import time

import pytest

from halfstep.errors import TrackingError
from halfstep.params.schema import TrackingParams
from halfstep.tracking.active_run import first_line
from halfstep.tracking.tracker import Tracker
from tests.faults.servers import hang, redirect, serving


@pytest.mark.parametrize("trouble", [hang, redirect])
def test_server_that_does_not_answer_is_left(trouble: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    started_s = time.monotonic()
    with serving(trouble) as server, pytest.raises(TrackingError, match=r"cannot be used \("):
        Tracker(TrackingParams(uri=server.uri))
    assert time.monotonic() - started_s < 12.0


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
