"""The account of a training step: what changed, by kinds of operations, from short traces of all arms in turns.

Measured change = sum of the kinds + unexplained. The kinds add up to the change of the calm untraced steps: each
instant of a calm traced step is shared equally by the operations that run then, the instants without any are the kind
`host`, and what the profiler itself costs is the kind `profiler`. The copy of the baseline goes through the same; where
its sum differs from 0, the account is void, and no reason rests on it.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any, Literal

import numpy as np
import pandas as pd

from stages.compare.explain.accounts import TURN, Accounts, fields_of
from stages.compare.explain.hardware import PeakRatios
from stages.compare.explain.limit import share_at_limit
from stages.compare.verdict import CONTROL_ERROR
from stages.policies import SIXTEEN_BIT
from stages.results.comparison import Account, Change, ClassChange, KindChange, OpChange, PartChange
from stages.results.profile import PROFILER
from stages.stats.changes import Changes
from stages.stats.speedup import Speedup

_SHOWN = 10  # operations that gained, that lost, and groups of layers
_NOTABLE = 0.005  # of the step; groups of layers that change by less are not listed


def account_of(
    accounts: Accounts | None,
    speedup: Speedup,
    ratios: PeakRatios | None,
) -> Account | None:
    """The account of a candidate.

    Args:
        accounts: of the baseline and the candidate; without them there is none.
        speedup: of training, as it was timed.
        ratios: what the processor can gain from the candidate's precision; None if unknown.
    """
    if accounts is None:
        return None
    measured = measured_change(speedup)
    times, changes = accounts.changes(["kind"])
    at_limit = _at_limit(accounts.baseline, ratios) if ratios else {}
    left_ms = {str(kind): at_limit.get(str(kind), 0.0) for kind in times.index if ratios and kind != PROFILER}
    kinds = [
        KindChange(kind=str(kind), limit_ms=left_ms.get(str(kind)), **fields_of(times, changes, place))
        for place, kind in enumerate(times.index)
    ]
    of_copy = accounts.of_copy
    copy = None if of_copy is None else of_copy.sum
    return Account(
        measured=measured,
        kinds=tuple(sorted(kinds, key=lambda found: (-abs(found.value), found.kind))),
        sum=accounts.step,
        unexplained=_unexplained(measured, accounts.step),
        turns=len(accounts.baseline[TURN].drop_duplicates()),
        control=None if copy is None else _change(copy),
        void=True if copy is not None and abs(copy.deltas[0]) > copy.half_widths(1 - CONTROL_ERROR)[0] else None,
        classes=tuple(_classes(accounts)) or None,
    )


def _unexplained(measured: Change, total: Change) -> Change:
    """The difference of what was timed and what the kinds add up to.

    Both rest on the same rounds. Their errors are added as if they were independent, so the interval is rather wide.
    """
    value, half = measured.value - total.value, total.high - total.value
    return Change(
        value=value,
        low=value - math.hypot(measured.value - measured.low, half),
        high=value + math.hypot(measured.high - measured.value, half),
    )


def measured_change(speedup: Speedup) -> Change:
    """The timed change of a step in milliseconds, with the interval of the speed-up."""
    low, value, high = (speedup.candidate_time_ms * (1 - ratio) for ratio in (speedup.high, speedup.ratio, speedup.low))
    return Change(value=value, low=low, high=high)


def op_changes(accounts: Accounts) -> dict[Literal["gained", "lost"], tuple[OpChange, ...]]:
    """The operations that gained and that lost most, by layer and type; those whose interval holds 0 are left out."""
    times, changes = accounts.changes(["layer", "operation"])
    halves = changes.half_widths()
    dtypes = [_dtypes(table) for table in (accounts.baseline, accounts.candidate)]
    found = []
    for place in np.flatnonzero(np.abs(changes.deltas) > halves):
        (layer, operation), row = times.index[place], times.iloc[place]
        if not operation:  # of the host, or what the profiler costs
            continue
        found.append(
            OpChange(
                layer=layer,
                operation=operation,
                baseline_ms=row["baseline_ms"] or None,
                candidate_ms=row["candidate_ms"] or None,
                baseline_dtype=dtypes[0].get((layer, operation)),
                candidate_dtype=dtypes[1].get((layer, operation)),
                delta_ms=changes.deltas[place],
                low_ms=changes.deltas[place] - halves[place],
                high_ms=changes.deltas[place] + halves[place],
            )
        )
    found.sort(key=lambda change: (change.delta_ms, change.layer, change.operation))
    gained = tuple(change for change in found if change.delta_ms < 0)[:_SHOWN]
    lost = tuple(change for change in reversed(found) if change.delta_ms > 0)[:_SHOWN]
    sides: dict[Literal["gained", "lost"], tuple[OpChange, ...]] = {"gained": gained, "lost": lost}
    return {side: side_changes for side, side_changes in sides.items() if side_changes}


def slower_layers(accounts: Accounts, known: Collection[str]) -> dict[str, float]:
    """The layers in which operations take longer than in the baseline, beyond noise, casts and input left out.

    Args:
        accounts: of the baseline and the candidate.
        known: paths of the layers that count.

    Returns:
        The milliseconds a step that they lose by path, those that lose most first.
    """
    times, changes = accounts.changes(["layer", "kind"])
    halves = changes.half_widths()
    lost: dict[str, float] = {}
    for place, (layer, kind) in enumerate(times.index):
        if layer in known and kind not in ("cast", "input") and changes.deltas[place] > halves[place]:
            lost[layer] = lost.get(layer, 0.0) + float(changes.deltas[place])
    return dict(sorted(lost.items(), key=lambda item: -item[1]))


def moved_to_16bit(accounts: Accounts) -> tuple[PartChange, list[dict[str, Any]]]:
    """The operations that the candidate computes in 16 bit, conversions left out: their change, and each type's.

    Returns:
        The change of all, and for each op type its `type`, `baseline_ms` and `candidate_ms`, the largest loss first.
    """

    def in_16bit(table: pd.DataFrame) -> pd.Series[bool]:
        return table["dtype"].isin(SIXTEEN_BIT) & (table["kind"] != "cast")

    candidate, baseline = accounts.candidate, accounts.baseline
    types = set(candidate["operation"][in_16bit(candidate)]) & set(baseline["operation"])
    change = accounts.change(
        lambda table: table["operation"].isin(types),
        lambda table: in_16bit(table) & table["operation"].isin(types),
    )
    chosen = (baseline, candidate[in_16bit(candidate)])
    turns = [len(table[TURN].drop_duplicates()) for table in (baseline, candidate)]
    means = [
        table[table["operation"].isin(types)].groupby("operation")["time_ms"].sum() / count
        for table, count in zip(chosen, turns, strict=True)
    ]
    rows = [
        {"type": op_type, "baseline_ms": float(means[0][op_type]), "candidate_ms": float(means[1][op_type])}
        for op_type in types
    ]
    return change, sorted(rows, key=lambda row: (row["baseline_ms"] - row["candidate_ms"], row["type"]))


def stayed_in_32bit(accounts: Accounts) -> PartChange:
    """The change of the operations that the candidate computes in float32, by layer and type."""
    columns = ["layer", "operation"]
    candidate = accounts.candidate
    places = pd.MultiIndex.from_frame(candidate[candidate["dtype"] == "float32"][columns].drop_duplicates())

    def chosen(table: pd.DataFrame) -> pd.Series[bool]:
        return pd.Series(pd.MultiIndex.from_frame(table[columns]).isin(places), index=table.index)

    return accounts.change(chosen, chosen)


def _classes(accounts: Accounts) -> list[ClassChange]:
    """What kinds of operations change by in all layers of a class, without small ones and those that may be 0."""
    times, changes = accounts.changes(["layer_class", "kind"])
    halves = changes.half_widths()
    both = pd.concat([accounts.baseline, accounts.candidate])
    layers = both.groupby(["layer_class", "kind"])["layer"].nunique()
    found = [
        ClassChange(
            layer_class=str(times.index[place][0]),
            kind=str(times.index[place][1]),
            layers=int(layers[times.index[place]]),
            **fields_of(times, changes, int(place)),
        )
        for place in np.flatnonzero(np.abs(changes.deltas) > np.maximum(halves, _NOTABLE * accounts.step.candidate_ms))
        if times.index[place][0]
    ]
    return sorted(found, key=lambda change: -abs(change.value))[:_SHOWN]


def _at_limit(table: pd.DataFrame, ratios: PeakRatios) -> dict[str, float]:
    """What is left of each kind where the precision gains as much as the processor can."""
    rows = table[table["kind"] != PROFILER]
    shares = [share_at_limit(row.kind, row.operation, row.dtype, ratios) for row in rows.itertuples()]
    sums = (rows["time_ms"] * shares).groupby(rows["kind"]).sum() / len(rows[TURN].drop_duplicates())
    return {str(kind): float(time_ms) for kind, time_ms in sums.items()}


def _dtypes(table: pd.DataFrame) -> dict[tuple[str, str], str]:
    """The data type with the most time of each operation in each layer; without those where it is unknown."""
    known = table[table["dtype"] != ""].groupby(["layer", "operation", "dtype"])["time_ms"].sum()
    longest = known.groupby(level=["layer", "operation"]).idxmax()
    return {(layer, operation): dtype for layer, operation, dtype in longest}


def _change(changes: Changes) -> Change:
    delta, half = float(changes.deltas[0]), float(changes.half_widths()[0])
    return Change(value=delta, low=delta - half, high=delta + half)
