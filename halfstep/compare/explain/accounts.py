"""What operations take of the traced steps of two arms, and how it changes from one to the other, by any parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from halfstep.results.comparison import PartChange
from halfstep.results.profile import Profile
from halfstep.stats.calm import calm_mean
from halfstep.stats.changes import Changes, paired_changes, unpaired_changes

_FEWEST_REPEATS = 2

Rows = Callable[[pd.DataFrame], "pd.Series[bool]"]
Part = tuple[pd.DataFrame, Changes]  # `baseline_ms` and `candidate_ms` of some times, and their changes


def calm_steps_ms(rounds: pd.DataFrame) -> pd.Series[float]:
    """The calm training step without the profiler, in milliseconds, by repeat, from the counted rounds."""
    rounds = rounds[rounds["counted"].astype(bool)]
    return (rounds["round_time_ms"] / rounds["steps"]).groupby(rounds["process"]).agg(calm_mean)


@dataclass(frozen=True)
class Accounts:
    """What operations take of the steps of two arms.

    Attributes:
        baseline, candidate: rows of account.csv of the repeats that count.
        calm_ms: the calm steps of both arms, and of the copy, without the profiler, by repeat.
        copy: rows of a second copy of the baseline, which shows the errors too.
        interleaved: whether the arms took turns, so that changes are paired by repeat.
    """

    baseline: pd.DataFrame
    candidate: pd.DataFrame
    calm_ms: tuple[pd.Series[float], ...]
    copy: pd.DataFrame | None = None
    interleaved: bool = True

    @classmethod
    def of(cls, baseline: Profile, candidate: Profile, copy: Profile | None = None) -> Accounts | None:
        """The accounts of two arms; None unless both have enough short traces, and rounds in the same repeats."""
        interleaved = baseline.summary.protocol.interleaved
        profiles = (baseline, candidate, *([copy] if copy else []))
        calm_ms = tuple(calm_steps_ms(profile.rounds) for profile in profiles)
        tables = [
            profile.account[profile.account["process"].isin(steps_ms.index)]
            for profile, steps_ms in zip(profiles, calm_ms, strict=True)
        ]
        if len(tables) > 2 and tables[2].empty:
            tables, calm_ms = tables[:2], calm_ms[:2]
        if interleaved:
            shared = set(tables[0]["process"]) & set(tables[1]["process"])
            tables = [table[table["process"].isin(shared)] for table in tables]
        if any(table["process"].nunique() < _FEWEST_REPEATS for table in tables[:2]):
            return None
        return cls(tables[0], tables[1], calm_ms, tables[2] if len(tables) > 2 else None, interleaved)

    @property
    def of_copy(self) -> Accounts | None:
        """The same for the copy in the candidate's place; None without one."""
        if self.copy is None or self.copy["process"].nunique() < _FEWEST_REPEATS:
            return None
        before, after, copy = self.calm_ms
        return replace(self, candidate=self.copy, copy=self.candidate, calm_ms=(before, copy, after))

    @property
    def repeats(self) -> int:
        """Repeats of the baseline that count."""
        return int(self.baseline["process"].nunique())

    def changes(self, columns: Sequence[str]) -> Part:
        """The traced times of the parts that these columns name, indexed by the columns, and how they change."""
        return self._changes(_by_repeat(table, columns) for table in self._tables)

    def change(self, before: Rows, after: Rows) -> PartChange:
        """The change of the sum of some rows of the baseline, and its copy, and of the candidate."""
        rows = (before, after, before)
        sums = (
            table.assign(time_ms=table["time_ms"].where(chosen(table), 0.0))
            for table, chosen in zip(self._tables, rows, strict=False)
        )
        return part_change(self._changes(_by_repeat(table, []) for table in sums))

    @cached_property
    def traced(self) -> Part:
        """The traced step, which is the sum of all parts."""
        return self._changes(_by_repeat(table, []) for table in self._tables)

    @cached_property
    def calm(self) -> Part:
        """The calm step without the profiler, in the same repeats.

        The copy has fewer rounds, so that it would overstate the error of the others.
        """
        return self._changes(self._steps_ms[:2])

    @cached_property
    def untraced(self) -> Part:
        """The calm step less the traced one: by its change, the traces miss something.

        An arm's traced and untraced steps are of the same processes, so a repeat may leave less than `REPEAT_SD`.
        """
        steps_ms = self._steps_ms
        levels = np.stack([step.mean() for step in steps_ms])
        left = (step - _by_repeat(table, []) for step, table in zip(steps_ms, self._tables, strict=True))
        return self._changes(left, levels, least_sd=0.0)

    @property
    def _steps_ms(self) -> list[pd.DataFrame]:
        return [
            steps_ms[steps_ms.index.isin(table["process"])].to_frame("step")
            for steps_ms, table in zip(self.calm_ms, self._tables, strict=False)
        ]

    @property
    def _tables(self) -> list[pd.DataFrame]:
        return [self.baseline, self.candidate, *([] if self.copy is None else [self.copy])]

    def _changes(
        self, by_repeat: Iterable[pd.DataFrame], levels: NDArray[np.float64] | None = None, **options: float
    ) -> Part:
        before, after, *copies = by_repeat
        before, after = before.align(after, join="outer", axis=1, fill_value=0.0)
        if self.interleaved:
            shared = before.index.intersection(after.index)
            before, after = before.loc[shared], after.loc[shared]
            copy = [table.reindex(columns=before.columns, fill_value=0.0).reindex(shared) for table in copies]
            of_copy = copy[0].to_numpy() if copy else None
            found = paired_changes(before.to_numpy(), after.to_numpy(), of_copy, levels, **options)
        else:
            found = unpaired_changes(before.to_numpy(), after.to_numpy())
        return pd.DataFrame({"baseline_ms": before.mean(), "candidate_ms": after.mean()}), found


def _by_repeat(table: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """Milliseconds of a step by repeat and part; without columns those of the whole step."""
    if columns:
        return table.groupby(["process", *columns])["time_ms"].sum().unstack(list(columns), fill_value=0.0)
    return table.groupby("process")["time_ms"].sum().to_frame("step")


def part_change(part: Part, place: int = 0) -> PartChange:
    """The change of the part at this place."""
    return PartChange(**fields_of(*part, place))


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
