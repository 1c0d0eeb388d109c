"""The account of a step: it can fail, its parts are paired by repeat, and it is said in one sentence."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from itertools import product
from typing import get_args

import numpy as np
import pandas as pd
import pytest

from halfstep.compare.explain.account import (
    account_of,
    measured_change,
    op_changes,
    slower_layers,
    with_names,
)
from halfstep.compare.explain.accounts import Accounts, part_change
from halfstep.compare.explain.hardware import PeakRatios
from halfstep.compare.explain.why import account_text, why
from halfstep.operations.op_kinds import OpKind
from halfstep.results.comparison import Account, BeforeAfter, Change, Reason
from halfstep.results.profile import AccountRow, read_profile
from halfstep.stats.speedup import ProcessTimes, Speedup
from tests.small_study import SmallStudy

CONVOLUTION = AccountRow(0, "convolution", "net/conv", "Conv2D", "Conv2D", "float32", 60.0)
NORM = AccountRow(0, "normalization", "net/norm", "BatchNormalization", "FusedBatchNormV3", "float32", 20.0)
HOST = AccountRow(0, "host", time_ms=25.0)
BASELINE = (CONVOLUTION, NORM, HOST)  # a traced step takes 105 ms
FASTER = (
    replace(CONVOLUTION, dtype="bfloat16", time_ms=30.0),
    AccountRow(0, "cast", "net/norm", "BatchNormalization", "Cast", "bfloat16", 8.0),
    AccountRow(0, "cast", "net/norm", "BatchNormalization", "Cast (gradient)", "float32", 2.0),
    NORM,
    HOST,
)
SLOWER = (CONVOLUTION, replace(NORM, time_ms=50.0), HOST)
RATIOS = PeakRatios(matrix=4.0, matrix_from_tf32=2.0)
PROFILER_MS = 5.0  # that a traced step takes longer
REPEATS = 4
TURNS, TURNS_SPREAD, OWN_SPREAD = 9, 0.02, 0.1


def table(parts: tuple[AccountRow, ...], *, drift: float = 0.0, copies: int = 1, phase: int = 0) -> pd.DataFrame:
    """Four repeats, each slower than the one before; of layers with numbers, if there are copies.

    The turns of a repeat vary around its times, in all kinds alike, and a little in each; their order has a phase.
    """
    rows = []
    for process, turn in product(range(REPEATS), range(TURNS)):
        for place, part in enumerate(parts):
            alike, own = (math.sin(2 * math.pi * (n * turn + phase) / TURNS) for n in (1, place + 2))
            varied = 1 + TURNS_SPREAD * (alike + OWN_SPREAD * own)
            time_ms = (1 + drift * (process - 1.5)) * varied * part.time_ms / TURNS / copies
            names = [part.layer + f"_{n}" * bool(n and part.layer) for n in range(copies)]
            rows += [replace(part, process=process, turn=turn, layer=name, time_ms=time_ms) for name in names]
    return pd.DataFrame(list(map(asdict, rows)))


def calm(step_ms: float, spread: float = 0.001) -> pd.Series:
    return step_ms * (1 + spread * pd.Series([-1.0, 1.0, 1.0, -1.0]))


def step_of(parts: tuple[AccountRow, ...]) -> float:
    """The calm step of an arm whose traced steps have these parts."""
    return sum(part.time_ms for part in parts) - PROFILER_MS


def of(
    after: tuple[AccountRow, ...],
    *,
    copy: tuple[AccountRow, ...] | None = BASELINE,
    after_ms: float | None = None,
    copy_ms: float = 100.0,
    drift: float = 0.0,
) -> Accounts:
    """Accounts of an arm with these parts, whose calm step is as long unless it is given."""
    calm_ms = (calm(100.0), calm(step_of(after) if after_ms is None else after_ms), calm(copy_ms, -0.001))
    copies = None if copy is None else table(copy, drift=-0.001, phase=2)
    tables = [table(BASELINE, drift=drift), table(after, drift=drift, phase=1), *([] if copies is None else [copies])]
    accounts = Accounts.scaled(tables, calm_ms[: len(tables)])
    assert accounts is not None
    return accounts


def timed(before_ms: float, after_ms: float, spread: float = 0.001) -> Speedup:
    offsets = (-spread, spread, -spread, spread)
    times = (ProcessTimes(1, before_ms, after_ms * (1 + offset), 0.0, 2) for offset in offsets)
    return Speedup(tuple(times))


def accounted(accounts: Accounts, timed_ms: float) -> Account:
    account = account_of(accounts, timed(100.0, timed_ms), RATIOS)
    assert account is not None
    return with_names({"x": account})["x"]


def test_kinds_and_disturbance_add_up_to_what_was_measured() -> None:
    account = accounted(of(FASTER), 82.5)
    deltas = {kind.kind: kind.delta for kind in account.kinds}
    shares = {"convolution": (60, 30), "cast": (0, 10), "normalization": (20, 20), "host": (25, 25)}
    expected = {kind: after / 85 * 80 - before / 105 * 100 for kind, (before, after) in shares.items()}
    assert deltas == pytest.approx(expected, abs=0.3)
    assert {kind.kind: kind.plain_ms for kind in account.kinds} == pytest.approx(expected, abs=0.3)
    assert [kind.kind for kind in account.named] == ["convolution", "cast"]
    assert [kind.p is None for kind in account.named] == [False, True], "no test says that the baseline has no casts"
    assert account.measured.delta == pytest.approx(-17.5, abs=0.01)
    assert account.calm.delta == pytest.approx(-20.0)
    assert account.disturbance.delta == pytest.approx(2.5, abs=0.3)
    parts = [*(kind.delta for kind in account.kinds), account.disturbance.delta]
    assert sum(parts) == pytest.approx(account.measured.delta)
    assert account.disturbance.low < 1 < account.disturbance.high
    inflation = account.inflation
    assert (inflation.baseline, inflation.candidate) == pytest.approx((1.05, 85 / 80), abs=1e-3)
    assert (account.void, account.repeats, account.tier, account.is_sound) == (None, 4, "explained", True)
    least_ms = {kind.kind: kind.least_ms for kind in account.kinds}
    assert least_ms["cast"] is None
    assert 0.5 < (least_ms["convolution"] or 0.0) < 10
    left = {kind.kind: kind.limit_ms for kind in account.kinds}
    assert left == pytest.approx(
        {"convolution": 15.0 / 1.05, "normalization": 10.0 / 1.05, "cast": 0.0, "host": 25.0 / 1.05}, rel=0.01
    )


@pytest.mark.parametrize(
    ("true", "factors", "tier"),
    [
        (FASTER, {"": 1.0}, "explained"),
        (FASTER, {"convolution": 0.1}, "suggested"),
        (FASTER, {"": 0.2}, "suggested"),
        (FASTER, {"normalization": 5.0}, "suggested"),
        (FASTER, {"cast": 4.0}, "suggested"),
        (FASTER, {"": 2.0}, "suggested"),
        (SLOWER, {"": 1.0}, "explained"),
        (SLOWER, {"convolution": 0.1}, "suggested"),
        (SLOWER, {"": 0.2}, "suggested"),
        (SLOWER, {"normalization": 5.0}, "suggested"),
        (BASELINE, {"convolution": 0.1}, "not_known"),
        (BASELINE, {"normalization": 5.0}, "not_known"),
    ],
)
def test_false_trace_explains_nothing(true: tuple[AccountRow, ...], factors: dict[str, float], tier: str) -> None:
    """The times of some kinds of the candidate are multiplied; the timing and the untraced steps are as they were."""
    false = tuple(
        part
        if part.kind == "host"
        else replace(part, time_ms=part.time_ms * factors.get(part.kind, factors.get("", 1.0)))
        for part in true
    )
    account = accounted(of(false, after_ms=step_of(true)), step_of(true))
    assert account.tier == tier
    text = account_text("x", account)
    assert ("The traces explain" in text) is (tier == "explained")
    assert ("The traces suggest" in text) is (tier == "suggested")


def test_changes_are_paired_by_repeat_or_independent() -> None:
    slow = [1.0, 1.1, 1.2, 1.3]  # the machine, in all arms of a repeat
    steps_ms = [step_ms * pd.Series(slow) for step_ms in (100.0, 80.0)]
    tables = [table(BASELINE), table(FASTER)]
    ways = [Accounts.scaled(tables, steps_ms, interleaved=way) for way in (True, False)]
    paired, unpaired = (part_change(accounts.step) for accounts in ways if accounts is not None)
    assert paired.delta == pytest.approx(unpaired.delta)
    assert unpaired.high - unpaired.low > 2 * (paired.high - paired.low)


def test_copy_whose_traces_differ_makes_the_account_void() -> None:
    slower = (replace(CONVOLUTION, time_ms=80.0), NORM, HOST)
    void = accounted(of(FASTER, copy=slower), 80.0)
    assert (void.void, void.is_sound, void.tier) == (True, False, "not_known")
    text = account_text("x", void)
    assert "two copies of the baseline, which are equal, differ in" in text
    assert "convolutions (+6" in text


def test_timing_that_contradicts_makes_the_account_unsound() -> None:
    account = accounted(of(FASTER), 120.0)
    assert account.is_sound is False
    assert "x takes 20.0 ms more a step" in account_text("x", account)
    assert "+40.0 (" in account_text("x", account), "the disturbance"


KINDS = get_args(OpKind)


def noisy(repeats: int, kinds: int, draw: np.random.Generator) -> Accounts:
    """Three equal arms of many kinds that differ by noise alone; the copy takes part in two repeats."""
    tables = []
    for count in (repeats, repeats, 2):
        rows = [
            AccountRow(process, KINDS[kind] if kind < len(KINDS) else f"kind_{kind}", "", "", "Op", "", time_ms)
            for process in range(count)
            for kind, time_ms in enumerate(1 + 0.05 * draw.normal(size=kinds))
        ]
        tables.append(pd.DataFrame(list(map(asdict, rows))))
    accounts = Accounts.scaled(tables, [rows.groupby("process")["time_ms"].sum() for rows in tables])
    assert accounts is not None
    return accounts


def test_kinds_of_equal_arms_are_hardly_ever_named() -> None:
    draw = np.random.default_rng(0)
    drawn = [accounted(noisy(4, 9, draw), 100.0) for _ in range(200)]
    named = sum(bool(account.named) for account in drawn)
    assert 1 <= named <= 18  # 5 % are 10
    assert sum(any(not kind.includes_0 for kind in account.kinds) for account in drawn) > 25, "without Holm's method"


def test_operations_and_layers_of_equal_arms_are_hardly_ever_listed() -> None:
    draw = np.random.default_rng(0)
    counts = []
    for _ in range(20):
        accounts = noisy(4, 80, draw)
        tables = [
            None if rows is None else rows.assign(operation=rows["kind"], layer=rows["kind"], kind="other")
            for rows in (accounts.baseline, accounts.candidate, accounts.copy)
        ]
        accounts = replace(accounts, baseline=tables[0], candidate=tables[1], copy=tables[2])
        one = accounted(accounts, 100.0)
        account = one.model_copy(update={"kinds": (one.kinds[0].model_copy(update={"named": True}),)})
        counts.append(
            len(op_changes(accounts, account))
            + len(slower_layers(accounts, {*KINDS, *(f"kind_{n}" for n in range(80))}))
        )
    assert sum(count > 0 for count in counts) <= 5


def test_operations_and_classes_are_listed_where_they_change() -> None:
    accounts = Accounts.scaled(
        [table(BASELINE, copies=3), table(FASTER, copies=3, drift=0.002)], [calm(100.0), calm(step_of(FASTER))]
    )
    assert accounts is not None
    account = accounted(accounts, 80.0)
    changes = op_changes(accounts, account)
    assert {change.operation for change in changes["gained"]} == {"Conv2D"}
    assert {change.operation for change in changes["lost"]} == {"Cast"}  # gradients change by less than 1 % of a step
    first = changes["gained"][0]
    assert (first.baseline_dtype, first.candidate_dtype) == ("float32", "bfloat16")
    assert first.low_ms < -9.6 < first.high_ms < 0
    assert [(row.layers, row.layer_class, row.kind, round(row.delta)) for row in account.classes or ()] == [
        (3, "Conv2D", "convolution", -28),
        (3, "BatchNormalization", "cast", 9),
    ]
    assert slower_layers(accounts, {"net/norm", "net/conv"}) == {}


@pytest.mark.parametrize(
    ("after", "after_ms", "timed_ms", "sentence"),
    [
        (
            FASTER,
            80.0,
            80.0,
            "x takes 20.0 ms less a step (19.8 to 20.2). The traces explain 19.5 of 20.0 ms: convolutions gain 28.9 "
            "ms; casts give back 9.41 ms (mostly in BatchNormalization).",
        ),
        (
            SLOWER,
            130.0,
            130.0,
            "x takes 30.0 ms more a step (29.8 to 30.2). The traces explain 29.1 of 30.0 ms: normalization costs 29.1 "
            "ms.",
        ),
        (SLOWER, 130.0, 125.0, ". The traces explain all of it, and 4.10 ms too much: normalization costs 29.1 ms."),
        (SLOWER, 130.0, 115.0, ". The traces do not say why: −15.0 (−17.6"),
        (BASELINE, 100.0, 100.0, ": nothing to explain."),
        (BASELINE, 102.0, 102.0, ". The traces do not say why: the largest change that they show is of "),
    ],
)
def test_account_in_words(after: tuple[AccountRow, ...], after_ms: float, timed_ms: float, sentence: str) -> None:
    assert sentence in account_text("x", accounted(of(after, after_ms=after_ms), timed_ms))


def test_cause_is_only_suggested_where_a_condition_is_missed() -> None:
    account = accounted(of(SLOWER), 130.0)
    suggested = account.model_copy(update={"inflation": BeforeAfter(baseline=1.0, candidate=1.3)})
    assert (account.tier, suggested.tier) == ("explained", "suggested")
    text = account_text("x", suggested)
    assert "The traces suggest why, and do not show it: normalization (+29.1 (" in text
    kinds = tuple(kind.model_copy(update={"plain_ms": 0.1 * kind.plain_ms}) for kind in account.kinds)
    assert account.model_copy(update={"kinds": kinds}).tier == "suggested"
    opposite = account.model_copy(update={"measured": Change(value=-30.0, low=-31.0, high=-29.0)})
    assert opposite.tier == "not_known"


def _reason(code: str) -> Reason:
    return Reason(code=code, text=f"{code}.", evidence={}, advice="Do.")


def test_why_begins_with_what_the_traces_show() -> None:
    """Then hardware; what limits any precision makes no step longer; a gain is no fault."""
    slower, faster = accounted(of(SLOWER), 130.0), accounted(of(FASTER), 80.0)
    same, unexplained = accounted(of(BASELINE), 100.0), accounted(of(BASELINE), 130.0)
    limit, hardware, settings = _reason("step_overhead"), _reason("no_16bit_instructions"), _reason("onednn_differs")
    assert why("x", (), None) is None
    assert why("x", (limit, hardware), None) == "no_16bit_instructions. Do."
    assert why("x", (limit, hardware), slower) == f"{account_text('x', slower)} no_16bit_instructions. Do."
    small = hardware.model_copy(update={"time_ms": 0.04 * 100})
    assert why("x", (small, limit), slower) == account_text("x", slower)
    assert why("x", (small, limit), same) == f"{account_text('x', same)} step_overhead. Do."
    assert why("x", (limit,), unexplained) == account_text("x", unexplained)
    assert why("x", (limit, hardware), faster) == account_text("x", faster)
    assert why("x", (settings,), unexplained) == f"{account_text('x', unexplained)} onednn_differs."
    assert why("x", (settings,), slower) == account_text("x", slower)
    of_inference = hardware.model_copy(update={"measure": "inference_b1"})
    assert why("x", (of_inference,), slower) == account_text("x", slower)


def test_arm_without_short_traces_has_no_account(project: SmallStudy) -> None:
    profile = read_profile("float32")
    assert Accounts.of(profile, profile) is not None
    one_repeat = replace(profile, account=profile.account[profile.account["process"] == 0])
    assert Accounts.of(profile, one_repeat) is None  # nothing shows what repeats differ by
    assert Accounts.of(profile, replace(profile, account=profile.account[:0])) is None
    no_rounds = replace(profile, rounds=profile.rounds[profile.rounds["process"] == 0])
    assert Accounts.of(profile, no_rounds) is None  # nothing is known without the profiler
    copy = Accounts.of(profile, profile, one_repeat)
    assert copy is not None
    assert copy.of_copy is None
    speedup = timed(100.0, 80.0)
    assert account_of(None, speedup, RATIOS) is None
    change = measured_change(speedup)
    assert change.low < change.delta < change.high < 0


def test_measured_change_may_be_0_just_where_the_ratio_may_be_1() -> None:
    """Repeats in which both arms are slower change neither."""
    factors = (0.9, 1.1, 0.9, 1.1)
    speedup = Speedup(tuple(ProcessTimes(1, 100.0 * factor, 80.0 * factor, 0.0, 2) for factor in factors))
    change, (low, high) = measured_change(speedup), speedup.interval(speedup.confidence)
    assert (change.low, change.high) == pytest.approx((80 * (1 - high), 80 * (1 - low)))
    assert change.delta == pytest.approx(-20.0)
