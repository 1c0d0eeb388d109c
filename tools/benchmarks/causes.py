"""Simulated accounts: how often do they name the kinds that changed, and how often others?

Times and their noise are those of the default network on two quiet cores. A traced step is inflated by a factor that is
common to all kinds of a turn, to a power that is the kind's own, and each share varies besides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from numpy.random import Generator

from halfstep.compare.explain.account import account_of, with_names
from halfstep.compare.explain.accounts import Accounts
from halfstep.results.comparison import Account
from halfstep.stats.speedup import ProcessTimes, Speedup

# By kind: ms a step in float32, in bfloat16, the power of the inflation, and the deviation of the logarithm.
KINDS = {
    "cast": (0.010, 0.195, 1.5, 0.25),
    "convolution": (1.328, 1.342, 0.8, 0.061),
    "host": (1.113, 1.167, 0.74, 0.031),
    "input": (0.118, 0.133, 0.81, 0.133),
    "matrix_product": (0.064, 0.055, 0.95, 0.17),
    "memory": (0.165, 0.285, 0.44, 0.085),
    "normalization": (0.648, 0.666, 1.69, 0.114),
    "other": (0.003, 0.004, 1.0, 0.2),
    "random": (0.112, 0.088, 0.97, 0.21),
}
_FLOAT32, _BFLOAT16, _POWERS, _SDS = (np.array(column) for column in zip(*KINDS.values(), strict=True))
_INFLATIONS = np.array([1.327, 1.047, 1.392, 1.457, 1.785, 1.044, 1.65, 1.642, 1.055, 1.907, 1.658, 1.154]) / 1.03
_STEP_SD = 0.03  # of an untraced step from repeat to repeat


@dataclass(frozen=True)
class Arm:
    """A candidate: what its kinds take, what they take only while they are traced, as a factor, and its noise."""

    times_ms: tuple[float, ...] = tuple(_FLOAT32)
    traced: Mapping[str, float] | None = None
    spread: float = 1.0


ARMS = {
    "bfloat16": Arm(tuple(_BFLOAT16)),
    "an equal one": Arm(),
    "an equal one, traced steps 25 % longer": Arm(traced={kind: 1.25**power for kind, (*_, power, _) in KINDS.items()}),
    "an equal one of 5 times the spread": Arm(spread=5.0),
    "normalization x 2 only while traced": Arm(traced={"normalization": 2.0}),
    "normalization x 4 only while traced": Arm(traced={"normalization": 4.0}),
    "convolutions + 20 %": Arm(tuple(_FLOAT32 * np.where(np.array(list(KINDS)) == "convolution", 1.2, 1.0))),
}
DESIGNS = {"3 repeats, 1 turn": (3, 1), "3 repeats, 4 turns": (3, 4), "5 repeats, 4 turns": (5, 4)}


def measurements(times: int) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """So many accounts of each arm in each design."""
    for design in DESIGNS:
        for arm in ARMS:
            yield f"{arm}, {design}", partial(_drawn, arm, design, times)


def _drawn(arm: str, design: str, times: int) -> dict[str, Any]:
    generator = np.random.default_rng(0)
    accounts = [_account(ARMS[arm], *DESIGNS[design], generator) for _ in range(times)]
    counts = {kind: sum(any(one.kind == kind for one in account.named) for account in accounts) for kind in KINDS}
    tiers = {tier: sum(account.tier == tier for account in accounts) for tier in ("explained", "suggested")}
    some = sum(bool(account.named) for account in accounts)
    return {"arm": arm, "design": design, "times": times, "counts": counts, "some": some, "tiers": tiers}


def _account(candidate: Arm, repeats: int, turns: int, generator: Generator) -> Account:
    """The account of the candidate, beside one of float16's place that equals the baseline."""
    tables, steps_ms = zip(
        *(_measured(arm, repeats, turns, generator) for arm in (Arm(), candidate, Arm(), Arm())), strict=True
    )
    accounts = {}
    for place in (1, 3):
        pair = Accounts.scaled([tables[n] for n in (0, place, 2)], [steps_ms[n] for n in (0, place, 2)])
        assert pair is not None, "all arms were traced"
        times = zip(steps_ms[0], steps_ms[place], strict=True)
        speedup = Speedup(tuple(ProcessTimes(1, before_ms, after_ms, 0.0, 2) for before_ms, after_ms in times))
        accounts[place] = account_of(pair, speedup, None)
    return with_names({place: account for place, account in accounts.items() if account is not None})[1]


def _measured(arm: Arm, repeats: int, turns: int, generator: Generator) -> tuple[pd.DataFrame, pd.Series[float]]:
    """Rows of account.csv, and the untraced step by repeat."""
    inflations = generator.choice(_INFLATIONS, (repeats, turns, 1)) ** _POWERS
    noise = np.exp(arm.spread * _SDS * generator.normal(size=(repeats, turns, len(KINDS))))
    factors = np.array([(arm.traced or {}).get(kind, 1.0) for kind in KINDS])
    times_ms = np.array(arm.times_ms) * factors * inflations * noise / turns
    places = pd.MultiIndex.from_product([range(repeats), range(turns)], names=["process", "turn"])
    rows = pd.DataFrame(times_ms.reshape(-1, len(KINDS)), index=places, columns=list(KINDS)).reset_index()
    table = rows.melt(["process", "turn"], var_name="kind", value_name="time_ms")
    step_ms = sum(arm.times_ms) * np.exp(_STEP_SD * generator.normal(size=repeats))
    return table.assign(layer="", layer_class="", operation="", dtype=""), pd.Series(step_ms)


def report(rows: Sequence[Mapping[str, Any]]) -> str:
    """Per cent of the accounts, with the kinds that are named in at least 2 %."""
    lines = []
    for row in rows:
        percent = {kind: 100 * count / row["times"] for kind, count in row["counts"].items()}
        named = ", ".join(f"{kind} {value:.0f}" for kind, value in percent.items() if value >= 2)
        share = {name: 100 * count / row["times"] for name, count in {"any": row["some"], **row["tiers"]}.items()}
        lines.append(
            f"{row['design']} | {row['arm']} | {share['any']:.1f} | {named} | {share['explained']:.0f} | "
            f"{share['suggested']:.0f}"
        )
    return "design | candidate | names any, % | names, % | explained | suggested\n" + "\n".join(lines)
