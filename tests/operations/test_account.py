"""The account of a step by kinds, as the benchmark computes it."""

from __future__ import annotations

import numpy as np
import pytest

from stages.operations.op_kinds import Layers
from stages.profile.trace.timeline import TracedSteps, Work
from tools.benchmarks.account import BASELINE, CANDIDATE, COPY, account, change, kinds_of


@pytest.mark.parametrize(("repeat_sd", "turn_sd"), [(0.0, 1.0), (1.0, 1.0), (2.0, 0.1)])
def test_interval_of_a_change_holds_the_truth(repeat_sd: float, turn_sd: float) -> None:
    draw = np.random.default_rng(0)
    held = 0
    for _ in range(400):
        found = 5 + draw.normal(0, repeat_sd, (4, 1)) + draw.normal(0, turn_sd, (4, 4))
        delta, half_width = change(found)
        held += abs(delta - 5) <= half_width
    assert held >= 0.93 * 400


def test_kinds_add_up_to_the_step_without_the_profiler() -> None:
    shares = {Work("net/a", "Mul", False): 2.0, Work("net/b", "MatMul", False): 5.0, Work("g", "GatherV2", True): 1.0}
    found = kinds_of(TracedSteps(3, 9.0, shares, 1.0), 8.5, Layers())
    assert found == {"memory": 2.0, "matrix_product": 5.0, "input": 1.0, "host": 1.0, "profiler": -0.5}
    assert sum(found.values()) == 8.5


def test_account_is_paired_by_turn() -> None:
    base = [[{"memory": 1.0 + turn, "host": 1.0, "profiler": -1.0} for turn in range(3)] for _ in range(2)]
    faster = [[kinds | {"memory": kinds["memory"] - 0.5, "cast": 0.25} for kinds in repeat] for repeat in base]
    found = account({BASELINE: base, COPY: base, CANDIDATE: faster}, CANDIDATE)
    np.testing.assert_allclose([found["memory"], found["cast"]], [(-0.5, 0.0), (0.25, 0.0)], atol=1e-12)
    assert found["sum"][0] == -0.25
