"""Every command that the answer prints in a clone does what it says when it is pasted."""

from __future__ import annotations

import pytest

from tests.pipeline.conftest import Checkout

PROGRAM = """
from halfstep.system import rerun
print(rerun.again("profile"))
print(rerun.with_values({"profile.processes": 3, "profile.max_seconds": 1, "profile.target_precision": 0.05}))
"""


@pytest.mark.slow
def test_commands_work_when_they_are_pasted(copied: Checkout) -> None:
    again, longer = copied.check_output("python", "-c", PROGRAM).splitlines()
    before = copied.json("data/compare/comparison.json")
    repeats = []
    for command in (again, longer):
        output = copied.check_output("bash", "-c", command)
        assert "Report     data/compare/report.html" in output
        assert "Running stage 'train@float32-0'" not in output
        result = copied.json("data/compare/comparison.json")
        assert result["control"] != before["control"]
        repeats.append(result["candidates"]["mixed_bfloat16"]["speedup"]["train"]["processes"])
    assert repeats == [2, 3]
    copied.check_output("bash", "-c", "halfstep advise")
