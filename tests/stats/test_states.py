"""Two states of a machine: found where they were built in, and not in noise with one mode."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from stages.stats.states import find_states

Times = NDArray[np.float64]  # (processes, rounds)
KINDS = ("lognormal", "exponential", "outliers", "outliers of all arms", "drift", "shared noise")
STEPS = 4


def _table(step_times_ms: Times) -> pd.DataFrame:
    """A rounds.csv whose first round of each process does not count and takes ten times as long."""
    processes, rounds = step_times_ms.shape
    with_first = np.column_stack([10 * step_times_ms[:, 0], step_times_ms])
    return pd.DataFrame(
        {
            "process": np.repeat(np.arange(processes), rounds + 1),
            "round": np.tile(np.arange(rounds + 1), processes),
            "steps": STEPS,
            "round_time_ms": STEPS * with_first.ravel(),
            "counted": np.tile(np.arange(rounds + 1) > 0, processes),
        }
    )


def _one_state(rng: np.random.Generator, kind: str, processes: int, rounds: int, sd: float) -> list[Times]:
    """Baseline and candidate; processes differ by 5 %, and the candidate is 1.1 times as fast."""
    shape = (processes, rounds)
    level = 100 * np.exp(rng.normal(0, 0.05, (processes, 1)))
    shared = {
        "outliers of all arms": np.where(rng.random(shape) < 0.05, np.log(3), 0.0),
        "drift": np.linspace(0, 0.2, rounds) * rng.choice([-1.0, 1.0], (processes, 1)),
        "shared noise": rng.normal(0, 0.1, shape),
    }.get(kind, np.zeros(shape))
    arms = []
    for ratio in (1.0, 1.1):
        noise = rng.exponential(sd, shape) if kind == "exponential" else rng.normal(0, sd, shape)
        noise += np.where(rng.random(shape) < 0.05, np.log(3), 0.0) if kind == "outliers" else 0.0
        own = 1.2 if kind == "drift" and ratio > 1 else 1.0  # the ratio changes with the drift
        arms.append(level * np.exp(own * shared + noise + rng.normal(0, 0.01, (processes, 1))) / ratio)
    return arms


@pytest.mark.parametrize("kind", KINDS)
def test_noise_with_one_mode_is_one_state(kind: str) -> None:
    rng = np.random.default_rng(11)
    protocols = [(4, 15, 0.02), (4, 15, 0.1), (8, 12, 0.02), (8, 25, 0.05)]
    found = [
        bool(find_states(*map(_table, _one_state(rng, kind, *protocol)))) for protocol in protocols for _ in range(50)
    ]
    assert np.mean(found) <= 0.01


def _two_states(rng: np.random.Generator, slow_ms: tuple[float, float], sd: float, processes: int = 4) -> list[Times]:
    """As ResNet-20 was measured once: float32 in 131 or 171 ms, mixed_bfloat16 in 117 or 165 ms."""
    is_slow = rng.random((processes, 15)) < 0.5
    means = [(131.0, slow_ms[0]), (117.0, slow_ms[1])]
    return [np.where(is_slow, slow, fast) * np.exp(rng.normal(0, sd, is_slow.shape)) for fast, slow in means]


def test_two_states_with_different_ratios_are_found() -> None:
    rng = np.random.default_rng(3)
    found = [find_states(*map(_table, _two_states(rng, (171.0, 165.0), 0.02))) for _ in range(40)]
    assert np.mean([bool(states) for states in found]) >= 0.95
    fast, slow = next(states for states in found if states)
    assert fast.baseline_time_ms == pytest.approx(131, rel=0.02)
    assert slow.baseline_time_ms == pytest.approx(171, rel=0.02)
    assert fast.low < 131 / 117 < fast.high
    assert slow.low < 171 / 165 < slow.high
    assert fast.rounds + slow.rounds == 60


def test_states_with_one_ratio_are_not_reported() -> None:
    rng = np.random.default_rng(5)
    found = [
        bool(find_states(*map(_table, _two_states(rng, (171.0, 171.0 * 117 / 131), 0.02, processes=8))))
        for _ in range(40)
    ]
    assert np.mean(found) <= 0.15  # nominally 5 %: the interval of the difference


def test_stalls_of_one_arm_are_no_state() -> None:
    rng = np.random.default_rng(7)
    arms = _one_state(rng, "lognormal", 8, 20, 0.02)
    arms[1] *= np.where(rng.random(arms[1].shape) < 0.3, 3.0, 1.0)
    assert find_states(*map(_table, arms)) == ()


@pytest.mark.parametrize(("processes", "rounds"), [(2, 15), (8, 5)])
def test_too_few_processes_or_rounds_show_no_states(processes: int, rounds: int) -> None:
    arms = [np.tile([100.0, 150.0], (processes, 15))[:, :rounds] for _ in range(2)]
    arms[1] = np.where(arms[1] > 120, 140.0, 80.0)
    assert find_states(*map(_table, arms)) == ()
