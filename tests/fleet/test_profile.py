"""`python -m halfstep fleet profile` on a cluster of two nodes, whose fingerprints differ in a setting."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.fleet.conftest import cluster_of

if TYPE_CHECKING:
    from tests.pipeline.conftest import Checkout

pytest.importorskip("ray")
pytestmark = pytest.mark.fleet

SETTING = "TF_NUM_INTRAOP_THREADS"


def test_each_kind_of_machine_is_measured_and_compared(home: Checkout, tmp_path: Path) -> None:
    home.configure({"train.epochs": 0})
    with cluster_of(tmp_path, {"node1": {}, "node2": {SETTING: "1"}}) as cluster:
        output = home.check_output("python", "-m", "halfstep", "fleet", "profile", RAY_ADDRESS=cluster.address)
    assert re.search(r"fingerprints of the 2 nodes: \w{12}, \w{12}\n", output)
    measured = re.findall(r"profile (\w{12}) on \S+: started$", output, flags=re.MULTILINE)
    results = [
        home.json(path.relative_to(home.root).as_posix()) for path in (home.root / "data/fleet").glob("*/*.json")
    ]
    assert len(measured) == len(results) == 2
    settings = [result["comparison"]["environment"]["settings"].get(SETTING) for result in results]
    assert sorted(settings, key=str) == ["1", None]
    for result in results:
        assert result["comparison"]["speed_only"] is True
        assert result["machine"] in output
        assert result["alike"]["train.epochs"] == 0
    require_measured_one_after_the_other(output)
    # The same kind of machine as the first node: its profile comes out of the run cache.
    started = home.check_output("dvc", "repro", "--pull")
    assert set(re.findall(r"Running stage '(.*)'", started)) <= {"environment", "compare"}
    again = home.check_output("python", "-m", "halfstep", "fleet", "report")
    assert "mixed_bfloat16, training: " in again


def require_measured_one_after_the_other(output: str) -> None:
    """Both nodes are on one host: the second begins after the first has come home."""
    lines = re.findall(r"profile \w{12}(?: on \S+)?: (started|measures|data/fleet)", output)
    assert lines == ["started", "measures", "data/fleet"] * 2
