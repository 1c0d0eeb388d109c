"""How a stage's parent reports its end."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from halfstep.system.imports import search_path
from halfstep.system.supervision import description_of_end

STAGE = """
from halfstep.system.supervision import supervise
supervise(__name__)
from halfstep.cli import cli_entry, run

@cli_entry
def main():
    {body}

if __name__ == "__main__":
    raise SystemExit(run(main))
"""


@pytest.mark.parametrize("body", ["raise KeyboardInterrupt", "exec('raise KeyboardInterrupt')"])
def test_ctrl_c_is_one_line_wherever_it_hits(tmp_path: Path, body: str) -> None:
    (tmp_path / "a_stage.py").write_text(STAGE.format(body=body))
    command = [sys.executable, "-m", "a_stage"]
    done = subprocess.run(command, cwd=tmp_path, env=search_path(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")


def test_end_by_a_signal_has_its_likely_cause() -> None:
    cause = "it used more processor time than `ulimit -t` allows"
    assert description_of_end(-signal.SIGXCPU) == f"SIGXCPU ended it: {cause}"
    assert description_of_end(-signal.SIGTERM) == "SIGTERM ended it"
    assert description_of_end(-40) == "signal 40 ended it"
