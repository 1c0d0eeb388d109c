"""`python -m stages.fleet profile` on a cluster of two nodes, whose fingerprints differ in a setting of TensorFlow."""

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
        output = home.check_output("python", "-m", "stages.fleet", "profile", RAY_ADDRESS=cluster.address)
    assert re.search(r"fingerprints of the 2 nodes: \w{12}, \w{12}\n", output)
    measured = re.findall(r"^fleet: profile (\w{12}) on \S+: started", output, flags=re.MULTILINE)
    report = home.json("data/fleet/report.json")
    machines = {machine["digest"]: machine for machine in report["machines"]}
    assert sorted(measured) == sorted(machines)
    settings = [machine["environment"]["settings"].get(SETTING) for machine in machines.values()]
    assert sorted(settings, key=str) == ["1", None]
    assert report["speed_only"] is True
    assert len(report["rows"]) == 4  # two machines with training and one batch size of inference
    assert {row["machine"] for row in report["rows"]} == set(machines)
    for digest in machines:
        assert digest in output
        provenance = home.json(f"data/fleet/{digest}/provenance.json")
        assert provenance["commit"] == report["commit"]
        assert provenance["params"]["train.epochs"] == 0
    require_measured_one_after_the_other(output)
    # The same kind of machine as the first node: its profile comes out of the run cache.
    started = home.check_output("dvc", "repro", "--pull")
    assert set(re.findall(r"Running stage '(.*)'", started)) <= {"environment", "compare"}
    again = home.check_output("python", "-m", "stages.fleet", "report")
    assert "mixed_bfloat16, training: " in again


def require_measured_one_after_the_other(output: str) -> None:
    """Both nodes are on one host: the second begins after the first has come home."""
    lines = re.findall(r"^fleet: profile \w{12} on \S+: (started|measures|data/fleet)", output, flags=re.MULTILINE)
    assert lines == ["started", "measures", "data/fleet"] * 2
