"""`.ci/audit` without its database: it says so, and only `--require` makes that an error."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest


@pytest.mark.parametrize(("arguments", "status"), [([], 0), (["--require"], 2)])
def test_audit_without_its_database_is_skipped_with_one_line(arguments: list[str], status: int, root: Path) -> None:
    no_network = {"https_proxy": "http://127.0.0.1:9", "HTTPS_PROXY": "http://127.0.0.1:9", "no_proxy": ""}
    started_s = time.monotonic()
    done = subprocess.run(
        ["bash", ".ci/audit", *arguments],
        cwd=root,
        env=os.environ | no_network,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (status, "")
    assert done.stderr.startswith("audit: skipped: ")
    assert done.stderr.count("\n") == 1
    assert time.monotonic() - started_s < 10


def test_ci_runs_the_audit(root: Path) -> None:
    assert "\n.ci/audit\n" in (root / ".ci/run").read_text()
    assert "bash .ci/audit --require" in (root / ".github/workflows/ci.yml").read_text()
