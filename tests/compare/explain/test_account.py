"""The account of a step: its parts add up, are paired by repeat, and are said in one sentence."""

from __future__ import annotations

from dataclasses import asdict, replace

import pandas as pd
import pytest

from stages.compare.explain.account import account_of, measured_change, moved_to_16bit, op_changes, stayed_in_32bit
from stages.compare.explain.accounts import Accounts
from stages.compare.explain.hardware import PeakRatios
from stages.compare.explain.why import why
from stages.profile.records import TracedPart
from stages.results.comparison import Account
from stages.results.profile import AccountRow, read_profile
from stages.stats.speedup import ProcessTimes, Speedup
from tests.small_study import SmallStudy

CONVOLUTION = TracedPart("convolution", "net/conv", "Conv2D", "Conv2D", "float32", 60.0)
NORM = TracedPart("normalization", "net/norm", "BatchNormalization", "FusedBatchNormV3", "float32", 20.0)
HOST, PROFILER = TracedPart("host", time_ms=25.0), TracedPart("profiler", time_ms=-5.0)
BASELINE = (CONVOLUTION, NORM, HOST, PROFILER)
FASTER = (
    CONVOLUTION._replace(dtype="bfloat16", time_ms=30.0),
    TracedPart("cast", "net/norm", "BatchNormalization", "Cast", "bfloat16", 8.0),
    TracedPart("cast", "net/norm", "BatchNormalization", "Cast (gradient)", "float32", 2.0),
    NORM,
    HOST,
    PROFILER,
)
RATIOS = PeakRatios(matrix=4.0, matrix_from_tf32=2.0)


def table(parts: tuple[TracedPart, ...], *, drift: float = 0.0, copies: int = 1) -> pd.DataFrame:
    """Four repeats of two stretches, each slower than the one before; of layers with numbers, if there are copies."""
    rows = []
    for process in range(4):
        for turn in range(2):
            for part in parts:
                scale = 1 + drift * (2 * process + turn - 3.5)
                own = part._replace(time_ms=scale * part.time_ms / copies)
                names = [own.layer + f"_{n}" * bool(n and own.layer) for n in range(copies)]
                rows += [AccountRow(process, turn, **own._replace(layer=name)._asdict()) for name in names]
    return pd.DataFrame(list(map(asdict, rows)))


def timed(before_ms: float, after_ms: float, spread: float = 0.001) -> Speedup:
    offsets = (-spread, spread, -spread, spread)
    times = (ProcessTimes(1, before_ms, after_ms * (1 + offset), 0.0, 2) for offset in offsets)
    return Speedup(tuple(times))


def accounted(after: tuple[TracedPart, ...], after_ms: float, *, copy: tuple[TracedPart, ...] = BASELINE) -> Account:
    found = account_of(Accounts(table(BASELINE), table(after), table(copy)), timed(100.0, after_ms), RATIOS)
    assert found is not None
    return found


def test_kinds_and_what_is_unexplained_add_up_to_what_was_measured() -> None:
    found = accounted(FASTER, 82.0)
    deltas = {kind.kind: kind.delta for kind in found.kinds}
    assert deltas == pytest.approx({"convolution": -30, "cast": 10, "normalization": 0, "host": 0, "profiler": 0})
    assert found.measured.delta == pytest.approx(-18.0, abs=0.01)
    assert found.sum.delta == pytest.approx(-20.0)
    assert found.unexplained.delta == pytest.approx(found.measured.delta - found.sum.delta)
    assert found.unexplained.low < 2 < found.unexplained.high
    assert (found.void, found.turns) == (None, 8)
    assert found.is_sound
    left = {kind.kind: kind.limit_ms for kind in found.kinds}
    assert left == {"convolution": 15.0, "normalization": 10.0, "cast": 0.0, "host": 25.0, "profiler": None}


def test_changes_are_paired_by_repeat_or_independent() -> None:
    before, after = table(BASELINE, drift=0.05), table(FASTER, drift=0.05)
    paired, unpaired = (Accounts(before, after, interleaved=interleaved).step for interleaved in (True, False))
    assert paired.delta == pytest.approx(unpaired.delta)
    assert unpaired.high - unpaired.low > 2 * (paired.high - paired.low)


def test_copy_that_differs_or_timing_that_contradicts_makes_the_account_unsound() -> None:
    slower = (CONVOLUTION._replace(time_ms=66.0), NORM, HOST, PROFILER)
    void = accounted(FASTER, 82.0, copy=slower)
    assert (void.void, void.is_sound) == (True, False)
    assert accounted(FASTER, 120.0).is_sound is False
    assert "Why is not known" in str(why("x", void, timed(100.0, 82.0)))


def test_operations_and_classes_are_listed_where_their_interval_excludes_0() -> None:
    accounts = Accounts(table(BASELINE, copies=3), table(FASTER, copies=3, drift=0.002))
    found = op_changes(accounts)
    assert {change.operation for change in found["gained"]} == {"Conv2D"}
    assert {change.operation for change in found["lost"]} == {"Cast", "Cast (gradient)"}
    first = found["gained"][0]
    assert (first.baseline_dtype, first.candidate_dtype) == ("float32", "bfloat16")
    assert first.low_ms < -10 < first.high_ms < 0
    account = account_of(accounts, timed(100.0, 82.0), None)
    assert account is not None
    assert [(row.layers, row.layer_class, row.kind, round(row.delta)) for row in account.classes or ()] == [
        (3, "Conv2D", "convolution", -30),
        (3, "BatchNormalization", "cast", 10),
    ]


def test_operations_that_moved_to_16_bit_and_that_stayed() -> None:
    accounts = Accounts(table(BASELINE), table(FASTER))
    change, rows = moved_to_16bit(accounts)
    assert (change.baseline_ms, change.candidate_ms) == pytest.approx((60.0, 30.0))
    assert rows == [{"type": "Conv2D", "baseline_ms": 60.0, "candidate_ms": 30.0}]
    stayed = stayed_in_32bit(accounts)
    assert (stayed.baseline_ms, stayed.candidate_ms) == pytest.approx((20.0, 22.0))  # and the casts of gradients


@pytest.mark.parametrize(
    ("after", "after_ms", "sentence"),
    [
        (
            FASTER,
            80.0,
            "x takes 20.0 ms less a step (19.8 to 20.2): convolutions gain 30.0 ms; casts give back 10.0 ms (mostly in "
            "BatchNormalization); without these casts its speed-up would be 1.43×.",
        ),
        (
            (CONVOLUTION, NORM._replace(time_ms=50.0), HOST, PROFILER),
            130.0,
            "x takes 30.0 ms more a step (29.8 to 30.2): normalization costs 30.0 ms.",
        ),
        (BASELINE, 100.0, "x takes neither clearly less time a step nor clearly more"),
        (FASTER, 68.0, "; 12.0 ms less was timed than the account adds up to; without these casts"),
    ],
)
def test_why_is_one_sentence_on_the_account(after: tuple[TracedPart, ...], after_ms: float, sentence: str) -> None:
    found = why("x", accounted(after, after_ms), timed(100.0, after_ms, spread=0.0005))
    assert sentence in str(found)
    assert str(found).count(". ") == 0
    assert why("x", None, timed(100.0, after_ms)) is None


def test_arm_without_short_traces_has_no_account(project: SmallStudy) -> None:
    found = read_profile("float32")
    assert Accounts.of(found, found) is not None
    one_repeat = replace(found, account=found.account[found.account["process"] == 0])
    assert Accounts.of(found, one_repeat) is None  # nothing shows what repeats differ by
    assert Accounts.of(found, replace(found, account=found.account[:0])) is None
    copy = Accounts.of(found, found, one_repeat)
    assert copy is not None
    assert copy.of_copy is None
    speedup = timed(100.0, 80.0)
    assert account_of(None, speedup, RATIOS) is None
    change = measured_change(speedup)
    assert change.low < change.delta < change.high < 0
