"""What operations take of the calm steps of two arms, and how it changes from one to the other, by any parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pandas as pd

from stages.results.comparison import PartChange
from stages.results.profile import Profile
from stages.stats.changes import Changes, paired_changes, unpaired_changes

TURN = ["process", "turn"]  # columns that name a calm stretch
_FEWEST_REPEATS = 2

Rows = Callable[[pd.DataFrame], "pd.Series[bool]"]


@dataclass(frozen=True)
class Accounts:
    """What operations take of the steps of two arms.

    Attributes:
        baseline, candidate: rows of account.csv of the repeats that count.
        copy: those of a second copy of the baseline, which shows the errors too.
        interleaved: whether the arms took turns, so that changes are paired by repeat.
    """

    baseline: pd.DataFrame
    candidate: pd.DataFrame
    copy: pd.DataFrame | None = None
    interleaved: bool = True

    @classmethod
    def of(cls, baseline: Profile, candidate: Profile, copy: Profile | None = None) -> Accounts | None:
        """The accounts of two arms; None unless both have enough short traces."""
        interleaved = baseline.summary.protocol.interleaved
        tables = [profile.account for profile in (baseline, candidate, *([copy] if copy else []))]
        if interleaved:
            shared = set(tables[0]["process"]) & set(tables[1]["process"])
            tables = [table[table["process"].isin(shared)] for table in tables]
        if any(table["process"].nunique() < _FEWEST_REPEATS for table in tables[:2]):
            return None
        return cls(tables[0], tables[1], tables[2] if len(tables) > 2 else None, interleaved)

    @property
    def of_copy(self) -> Accounts | None:
        """The same for the copy in the candidate's place; None without one."""
        if self.copy is None or self.copy["process"].nunique() < _FEWEST_REPEATS:
            return None
        return replace(self, candidate=self.copy, copy=self.candidate)

    def changes(self, columns: Sequence[str]) -> tuple[pd.DataFrame, Changes]:
        """The times of the parts that these columns name, and how they change.

        Returns:
            A table with `baseline_ms` and `candidate_ms` indexed by the columns, and the changes in its order.
        """
        return self._changes(_by_repeat(table, columns) for table in self._tables)

    def change(self, before: Rows, after: Rows) -> PartChange:
        """The change of the sum of some rows of the baseline, and its copy, and of the candidate."""
        rows = (before, after, before)
        sums = (
            table.assign(time_ms=table["time_ms"].where(chosen(table), 0.0))
            for table, chosen in zip(self._tables, rows, strict=False)
        )
        return PartChange(**fields_of(*self._changes(_by_repeat(table, []) for table in sums), 0))

    @cached_property
    def sum(self) -> Changes:
        """The change of the whole step without the profiler."""
        return self._steps[1]

    @cached_property
    def step(self) -> PartChange:
        """The same with the mean steps."""
        return PartChange(**fields_of(*self._steps, 0))

    @cached_property
    def _steps(self) -> tuple[pd.DataFrame, Changes]:
        """By the untraced rounds, of which the copy has fewer, so that it would overstate the error of the others."""
        return self._changes(_by_repeat(table, []) for table in self._tables[:2])

    @property
    def _tables(self) -> list[pd.DataFrame]:
        return [self.baseline, self.candidate, *([] if self.copy is None else [self.copy])]

    def _changes(self, by_repeat: Iterable[pd.DataFrame]) -> tuple[pd.DataFrame, Changes]:
        before, after, *copies = by_repeat
        before, after = before.align(after, join="outer", axis=1, fill_value=0.0)
        copies = [table.reindex(columns=before.columns, fill_value=0.0) for table in copies]
        if self.interleaved:
            shared = before.index.intersection(after.index)
            before, after = before.loc[shared], after.loc[shared]
            all_three = shared.intersection(copies[0].index) if copies else shared
            with_copy = np.stack([table.loc[all_three] for table in (before, after, *copies)]) if copies else None
            found = paired_changes(before.to_numpy(), after.to_numpy(), with_copy)
        else:
            found = unpaired_changes(before.to_numpy(), after.to_numpy())
        return pd.DataFrame({"baseline_ms": before.mean(), "candidate_ms": after.mean()}), found


def _by_repeat(table: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """Milliseconds of a step by repeat and part; without columns those of the whole step."""
    if columns:
        by_turn = table.groupby([*TURN, *columns])["time_ms"].sum().unstack(list(columns), fill_value=0.0)
    else:
        by_turn = table.groupby(TURN)["time_ms"].sum().to_frame("sum")
    return by_turn.groupby("process").mean()


def fields_of(times: pd.DataFrame, changes: Changes, place: int) -> dict[str, float]:
    """The fields of a `PartChange`, for the part at this place."""
    delta, half = float(changes.deltas[place]), float(changes.half_widths()[place])
    row = times.iloc[place]
    return {
        "baseline_ms": float(row["baseline_ms"]),
        "candidate_ms": float(row["candidate_ms"]),
        "value": delta,
        "low": delta - half,
        "high": delta + half,
    }
