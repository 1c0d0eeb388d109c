from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from halfstep.errors import TraceError
from halfstep.profile.trace import xprof


def test_crash_of_the_child_is_reported_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A C++ CHECK ends the child by SIGABRT, as an interpreter that aborts does."""
    interpreter = tmp_path / "python"
    interpreter.write_text("#!/bin/sh\necho 'F0000 x.cc:1] Check failed: a < b' >&2\nkill -ABRT $$\n")
    interpreter.chmod(0o755)
    trace = tmp_path / "host.xplane.pb"
    trace.write_bytes(b"")
    monkeypatch.setattr(sys, "executable", str(interpreter))
    with pytest.raises(TraceError, match=rf"crashed \({signal.SIGABRT.name}; Check failed: a < b\)") as raised:
        xprof.convert([trace], timeout_s=30)
    assert str(raised.value).startswith(str(trace))
