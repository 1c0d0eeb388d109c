"""The account of a training step: what changed, by kinds of operations, from short traces of all arms in turns.

    measured = sum of the kinds + disturbance + unexplained

The kinds are the traced steps': each instant of a traced step is shared equally by the operations that run then, and
the instants without any are the kind `host`. `disturbance` is the timed change less that of the calm steps, and
`unexplained` is the change of the calm untraced steps less that of the traced ones: it would be 0 if the profiler cost
both arms the same and the traces showed all. The copy of the baseline goes through the same; where its traces differ
from those of the baseline, or leave something unexplained, the account is void, and no reason rests on it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Literal, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from halfstep.compare.explain.accounts import Accounts, Part, fields_of, part_change
from halfstep.compare.explain.hardware import PeakRatios
from halfstep.compare.explain.limit import share_at_limit
from halfstep.compare.verdict import CONTROL_ERROR
from halfstep.policies import SIXTEEN_BIT
from halfstep.results.comparison import Account, BeforeAfter, Change, KindChange, LayerClassChange, OpChange, PartChange
from halfstep.stats.changes import Changes
from halfstep.stats.multiple import discoveries, holm
from halfstep.stats.speedup import CONFIDENCE, Speedup, t_interval

_SHOWN = 10  # operations that gained, that lost, and groups of layers
# Of the operations and layers that are said to change, so many may be false on average; smaller changes than this share
# of the step are not listed.
_FALSE_DISCOVERIES, _NOTABLE = 0.1, 0.01

_Key = TypeVar("_Key")


def account_of(
    accounts: Accounts | None,
    speedup: Speedup,
    ratios: PeakRatios | None,
) -> Account | None:
    """The account of a candidate. `with_names` says which of its kinds are named.

    Args:
        accounts: of the baseline and the candidate; without them there is none.
        speedup: of training, as it was timed.
        ratios: what the processor can gain from the candidate's precision; None if unknown.
    """
    if accounts is None:
        return None
    measured, calm = measured_change(speedup), part_change(accounts.calm)
    times, changes = accounts.changes(["kind"])
    left_ms = _at_limit(accounts.baseline, ratios) if ratios else {}
    kinds = [
        KindChange(
            kind=str(kind),
            limit_ms=left_ms.get(str(kind), 0.0) if ratios else None,
            p=changes.p_values[place],
            **fields_of(times, changes, place),
        )
        for place, kind in enumerate(times.index)
    ]
    untraced, of_copy = part_change(accounts.untraced), accounts.of_copy
    return Account(
        measured=measured,
        calm=calm,
        kinds=tuple(sorted(kinds, key=lambda change: (-abs(change.value), change.kind))),
        sum=part_change(accounts.traced),
        disturbance=_difference(measured, calm),
        unexplained=Change(value=untraced.value, low=untraced.low, high=untraced.high),
        profiler_ms=BeforeAfter(baseline=-untraced.baseline_ms, candidate=-untraced.candidate_ms),
        repeats=accounts.repeats,
        control=None if of_copy is None else _change(of_copy.traced[1]),
        control_unexplained=None if of_copy is None else _change(of_copy.untraced[1]),
        void=True if of_copy is not None and any(map(_differs, (of_copy.traced, of_copy.untraced))) else None,
        classes=tuple(_classes(accounts)) or None,
    )


def with_names(accounts: Mapping[_Key, Account]) -> dict[_Key, Account]:
    """The accounts of a report, with the kinds that are named: Holm's method over all kinds of all accounts."""
    p_values = {(key, kind.kind): kind.p for key, account in accounts.items() for kind in account.kinds}
    adjusted = holm(p_values)
    named = {place for place, p in adjusted.items() if p <= 1 - CONFIDENCE}
    return {
        key: account.model_copy(
            update={
                "kinds": tuple(
                    kind.model_copy(update={"named": True}) if (key, kind.kind) in named else kind
                    for kind in account.kinds
                )
            }
        )
        for key, account in accounts.items()
    }


def _differs(part: Part) -> bool:
    """Whether one of the two parts of the copy differs from 0, at 99 % over both."""
    changes = part[1]
    return bool(abs(changes.deltas[0]) > changes.half_widths(1 - CONTROL_ERROR / 2)[0])


def _difference(first: Change, second: Change) -> Change:
    """The difference of two changes.

    Both rest on the same rounds. Their errors are added as if they were independent, so the interval is rather wide.
    """
    value, half = first.value - second.value, second.high - second.value
    return Change(
        value=value,
        low=value - math.hypot(first.value - first.low, half),
        high=value + math.hypot(first.high - first.value, half),
    )


def measured_change(speedup: Speedup) -> Change:
    """The timed change of a step in milliseconds, with the interval of the speed-up.

    It is `time of the candidate x (1 - ratio)`. The error of that time is added as if it were independent.
    """
    low, value, high = (speedup.candidate_time_ms * (1 - ratio) for ratio in (speedup.high, speedup.ratio, speedup.low))
    by_repeat_ms = np.array([repeat.candidate_ms / repeat.count for repeat in speedup.by_process])
    half = 0.0
    if len(by_repeat_ms) > 1:
        ends_ms = t_interval(by_repeat_ms, speedup.confidence)
        half = abs(value) * (ends_ms[1] - ends_ms[0]) / 2 / speedup.candidate_time_ms
    return Change(value=value, low=value - math.hypot(value - low, half), high=value + math.hypot(high - value, half))


def _listed(changes: Changes, step_ms: float, chosen: NDArray[np.bool_], *, only_slower: bool = False) -> list[int]:
    """Places of the chosen changes that are large enough, and are discoveries among the chosen ones."""
    places = np.flatnonzero(chosen)
    p_values, deltas = changes.p_values[places], changes.deltas[places]
    if only_slower:  # then what became faster is no discovery
        p_values = np.where(deltas > 0, p_values / 2, 1 - p_values / 2)
    return [
        int(place) for place in places[discoveries(p_values, _FALSE_DISCOVERIES) & (abs(deltas) >= _NOTABLE * step_ms)]
    ]


def op_changes(accounts: Accounts) -> dict[Literal["gained", "lost"], tuple[OpChange, ...]]:
    """The operations that gained and that lost most, by layer and type, without those that may not have changed."""
    times, changes = accounts.changes(["layer", "operation"])
    halves = changes.half_widths()
    dtypes = [_dtypes(table) for table in (accounts.baseline, accounts.candidate)]
    is_operation = times.index.get_level_values("operation").to_numpy() != ""  # not the host
    operations = []
    for place in _listed(changes, _step_ms(accounts), is_operation):
        (layer, operation), row = times.index[place], times.iloc[place]
        operations.append(
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
    operations.sort(key=lambda change: (change.delta_ms, change.layer, change.operation))
    gained = tuple(change for change in operations if change.delta_ms < 0)[:_SHOWN]
    lost = tuple(change for change in reversed(operations) if change.delta_ms > 0)[:_SHOWN]
    sides: dict[Literal["gained", "lost"], tuple[OpChange, ...]] = {"gained": gained, "lost": lost}
    return {side: side_changes for side, side_changes in sides.items() if side_changes}


def _step_ms(accounts: Accounts) -> float:
    """The candidate's calm step."""
    return float(accounts.calm[0]["candidate_ms"].iloc[0])


def slower_layers(accounts: Accounts, known: Collection[str]) -> dict[str, float]:
    """The layers in which operations take longer than in the baseline, beyond noise, casts and input left out.

    Args:
        accounts: of the baseline and the candidate.
        known: paths of the layers that count.

    Returns:
        The milliseconds a step that they lose by path, those that lose most first.
    """
    times, changes = accounts.changes(["layer", "kind"])
    counts = np.array([layer in known and kind not in ("cast", "input") for layer, kind in times.index], dtype=bool)
    lost: dict[str, float] = {}
    for place in _listed(changes, _step_ms(accounts), counts, only_slower=True):
        layer = str(times.index[place][0])
        lost[layer] = lost.get(layer, 0.0) + float(changes.deltas[place])
    return dict(sorted(lost.items(), key=lambda item: -item[1]))


def moved_to_16bit(accounts: Accounts) -> tuple[PartChange, list[dict[str, Any]]]:
    """The operations that the candidate computes in 16 bit, conversions left out: their change, and each type's.

    Returns:
        The change of all, and for each op type its `type`, `baseline_ms` and `candidate_ms`, the largest loss first.
    """

    candidate, baseline = accounts.candidate, accounts.baseline
    types = _moved_types(accounts)
    change = accounts.change(
        lambda table: table["operation"].isin(types),
        lambda table: _in_16bit(table) & table["operation"].isin(types),
    )
    chosen = (baseline, candidate[_in_16bit(candidate)])
    means = [
        table[table["operation"].isin(types)].groupby("operation")["time_ms"].sum() / whole["process"].nunique()
        for table, whole in zip(chosen, (baseline, candidate), strict=True)
    ]
    rows = [
        {"type": op_type, "baseline_ms": float(means[0][op_type]), "candidate_ms": float(means[1][op_type])}
        for op_type in types
    ]
    return change, sorted(rows, key=lambda row: (row["baseline_ms"] - row["candidate_ms"], row["type"]))


def slower_types(accounts: Accounts) -> list[tuple[str, PartChange]]:
    """The types of operations that the candidate computes in 16 bit and that take longer there, beyond noise.

    Returns:
        Them and their changes, conversions left out, those that lose most first.
    """
    types, moved = _moved_types(accounts), accounts.candidate[_in_16bit(accounts.candidate)]
    both = [accounts.baseline, moved, *([] if accounts.copy is None else [accounts.copy])]
    tables = [table[table["operation"].isin(types)] for table in both]
    of_types = replace(accounts, baseline=tables[0], candidate=tables[1], copy=tables[2] if tables[2:] else None)
    times, changes = of_types.changes(["operation"])
    places = _listed(changes, _step_ms(accounts), np.ones(len(times), dtype=bool), only_slower=True)
    slower = [(str(times.index[place]), PartChange(**fields_of(times, changes, place))) for place in places]
    return sorted(slower, key=lambda item: -item[1].delta)


def layers_of(accounts: Accounts, op_type: str) -> list[str]:
    """Where a type of operation runs, such as `53 Conv2D`: the classes with most of its time first."""
    rows = accounts.candidate[accounts.candidate["operation"] == op_type]
    rows = rows[rows["layer_class"] != ""]
    groups = rows.groupby("layer_class")
    order = groups["time_ms"].sum().sort_values(ascending=False).index
    counts = groups["layer"].nunique()
    return [f"{counts[name]} {name}" for name in order]


def _moved_types(accounts: Accounts) -> set[str]:
    """The types of operations that the candidate computes in 16 bit and the baseline has, too."""
    return set(accounts.candidate["operation"][_in_16bit(accounts.candidate)]) & set(accounts.baseline["operation"])


def _in_16bit(table: pd.DataFrame) -> pd.Series[bool]:
    return table["dtype"].isin(SIXTEEN_BIT) & (table["kind"] != "cast")


def stayed_in_32bit(accounts: Accounts) -> PartChange:
    """The change of the operations that the candidate computes in float32, by layer and type."""
    columns = ["layer", "operation"]
    candidate = accounts.candidate
    places = pd.MultiIndex.from_frame(candidate[candidate["dtype"] == "float32"][columns].drop_duplicates())

    def chosen(table: pd.DataFrame) -> pd.Series[bool]:
        return pd.Series(pd.MultiIndex.from_frame(table[columns]).isin(places), index=table.index)

    return accounts.change(chosen, chosen)


def _classes(accounts: Accounts) -> list[LayerClassChange]:
    """What kinds of operations change by in all layers of a class, without small ones and those that may be 0."""
    times, changes = accounts.changes(["layer_class", "kind"])
    both = pd.concat([accounts.baseline, accounts.candidate])
    layers = both.groupby(["layer_class", "kind"])["layer"].nunique()
    is_class = times.index.get_level_values("layer_class").to_numpy() != ""
    class_changes = [
        LayerClassChange(
            layer_class=str(times.index[place][0]),
            kind=str(times.index[place][1]),
            layers=int(layers[times.index[place]]),
            **fields_of(times, changes, place),
        )
        for place in _listed(changes, _step_ms(accounts), is_class)
    ]
    return sorted(class_changes, key=lambda change: -abs(change.value))[:_SHOWN]


def _at_limit(table: pd.DataFrame, ratios: PeakRatios) -> dict[str, float]:
    """What is left of each kind where the precision gains as much as the processor can."""
    shares = [share_at_limit(row.kind, row.operation, row.dtype, ratios) for row in table.itertuples()]
    sums = (table["time_ms"] * shares).groupby(table["kind"]).sum() / table["process"].nunique()
    return {str(kind): float(time_ms) for kind, time_ms in sums.items()}


def _dtypes(table: pd.DataFrame) -> dict[tuple[str, str], str]:
    """The data type with the most time of each operation in each layer; without those where it is unknown."""
    known = table[table["dtype"] != ""].groupby(["layer", "operation", "dtype"])["time_ms"].sum()
    longest = known.groupby(level=["layer", "operation"]).idxmax()
    return {(layer, operation): dtype for layer, operation, dtype in longest}


def _change(changes: Changes) -> Change:
    delta, half = float(changes.deltas[0]), float(changes.half_widths()[0])
    return Change(value=delta, low=delta - half, high=delta + half)
