"""A short trace of some turns: a worker makes it, and the stage, whose environment has what reads it, reads it."""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from halfstep.errors import TraceError
from halfstep.operations.graph_names import node_name
from halfstep.operations.op_kinds import Layers
from halfstep.profile.plan import LEADING_STEPS
from halfstep.profile.records import TracedStretch
from halfstep.results.profile import AccountRow

if TYPE_CHECKING:
    from halfstep.profile.trace import Operation
    from halfstep.profile.trace.timeline import TracedStep


@dataclass(frozen=True)
class ShortTrace:
    """A short trace that is not read yet.

    Attributes:
        folder: that contains the XSpace file alone.
        windows: steps of each turn that count; the first one of a turn does not.
        layers: what the names in the model's graph stand for.
        graph_dtypes: the data types of the training step's operations.
    """

    folder: Path
    windows: tuple[int, ...]
    layers: Layers
    graph_dtypes: Mapping[str, str]

    def read(self) -> list[TracedStretch]:
        """Reads the trace and removes it.

        Returns:
            The mean step of each of its turns.

        Raises:
            TraceError: the trace shows too few steps or no operations.
        """
        from halfstep.profile.trace.timeline import traced_steps  # which the environment of a worker may lack

        turns = [steps + LEADING_STEPS for steps in self.windows]
        try:
            (path,) = self.folder.rglob("*.xplane.pb")
            traced = traced_steps(path, turns)
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)
        if len(traced) != sum(turns) - 1:
            raise TraceError(f"the trace shows {len(traced) + 1} of {sum(turns)} steps")
        rows = _Rows(self.layers, self.graph_dtypes)
        stretches, first = [], 0  # `traced` lacks the first step, which does not count
        for steps, marked in zip(self.windows, turns, strict=True):
            stretches.append(_stretch(traced[first : first + steps], rows))
            first += marked
        return stretches


class _Rows(dict["Operation", AccountRow]):
    """The layer, kind and data type of each operation, which are the same in each step."""

    def __init__(self, layers: Layers, graph_dtypes: Mapping[str, str]) -> None:
        super().__init__()
        self._layers, self._graph_dtypes = layers, graph_dtypes

    def __missing__(self, operation: Operation) -> AccountRow:
        name = operation.name or operation.kernel
        place = self._layers.place(name, operation.type, is_input=operation.is_input)
        dtype = operation.dtype or self._graph_dtypes.get(node_name(name), "")
        self[operation] = AccountRow(0, *place, dtype, tensor_core=operation.tensor_core)
        return self[operation]


def _stretch(steps: Sequence[TracedStep], rows: Mapping[Operation, AccountRow]) -> TracedStretch:
    """The mean of traced steps, by layer and kind."""
    times_ms: dict[AccountRow, float] = defaultdict(float)
    for step in steps:
        for operation, share_ms in step.shares_ms.items():
            times_ms[rows[operation]] += share_ms / len(steps)
        for kind, idle_ms in step.idle_ms.items():
            times_ms[AccountRow(0, kind)] += idle_ms / len(steps)
    step_ms = fmean(step.step_ms for step in steps)
    return TracedStretch(step_ms, [replace(row, time_ms=time_ms) for row, time_ms in times_ms.items()])
