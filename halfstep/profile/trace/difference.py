"""What differs between two traces: metrics, and operations paired by layer and op type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from halfstep.profile.trace.model import Operation, Trace
from halfstep.profile.trace.pairing import Timed, paired_times

NOISE = (
    "The difference of two single traces includes noise of unknown size, of the machine and of the profiler. "
    "It shows what differs between these traces, not why, and not whether it would differ again."
)


@dataclass(frozen=True)
class OperationChange:
    """The operations of one type in one layer, in milliseconds on one device; None for a trace without them.

    Attributes:
        layer: path of the layer, such as `cnn/conv2d`; empty for operations outside layers.
        operation: op type, such as `Conv2D` or `Mul (gradient)`.
        before_dtype, after_dtype: the data type with the most time; None if it is unknown.
    """

    layer: str
    operation: str
    before_ms: float | None
    after_ms: float | None
    before_dtype: str | None
    after_dtype: str | None

    @property
    def delta_ms(self) -> float:
        """After − before: negative if less time is spent. A trace without the operations counts as 0."""
        return (self.after_ms or 0.0) - (self.before_ms or 0.0)


@dataclass(frozen=True)
class Difference:
    """Two traces and what differs between them.

    Attributes:
        metrics: the metrics of each trace, as in `Trace.metrics`; one that does not apply to a trace is absent there.
        operations: the change that saves most time first.
        per_step: whether the times of `operations` are of one step; otherwise they are of the whole trace.
        notes: what a reader of the numbers should know.
    """

    before: Trace
    after: Trace
    metrics: tuple[dict[str, float], dict[str, float]]
    operations: tuple[OperationChange, ...]
    per_step: bool
    notes: tuple[str, ...]

    @property
    def gained(self) -> tuple[OperationChange, ...]:
        """The operations that take less time after, or are gone, the largest change first."""
        return tuple(change for change in self.operations if change.delta_ms < 0)

    @property
    def lost(self) -> tuple[OperationChange, ...]:
        """The operations that take more time after, or are new, the largest change first."""
        return tuple(change for change in reversed(self.operations) if change.delta_ms > 0)


def difference(before: Trace, after: Trace) -> Difference:
    """Compares two traces.

    The times of operations are of one step if both traces have step markers. The profiler may drop the steps at the
    ends of a trace from its breakdown, but not from the times of operations: these are divided by the number of marks.
    """
    per_step = bool(before.marked_steps and after.marked_steps)
    rows = (_rows(before, per_step), _rows(after, per_step))
    times, times_after = paired_times(*rows)
    changes = [_change(*key, times.get(key, {}), times_after.get(key, {})) for key in times | times_after]
    return Difference(
        before=before,
        after=after,
        metrics=(before.metrics(), after.metrics()),
        operations=tuple(sorted(changes, key=lambda change: (change.delta_ms, change.layer, change.operation))),
        per_step=per_step,
        notes=_notes(before, after, per_step),
    )


def _rows(trace: Trace, per_step: bool) -> list[Timed]:
    """The operations of a step, or of the whole trace, with their milliseconds."""
    operations = trace.compute or tuple(item for item in trace.operations if item.host_or_device == "Device")
    steps = trace.marked_steps if per_step else 1
    return [(_without_kernel(item), trace.operation_per_step(item, steps)[1]) for item in operations]


def _without_kernel(item: Operation) -> Operation:
    """The operation; of a kernel without one what it computes, as its name depends on the precision."""
    return item if item.name or not item.kernel else item._replace(type=f"{item.category} kernels without an operation")


def _change(
    layer: str, operation: str, before: Mapping[str | None, float], after: Mapping[str | None, float]
) -> OperationChange:
    """From the times by data type; empty for a trace without the operations."""
    return OperationChange(
        layer,
        operation,
        before_ms=sum(before.values()) if before else None,
        after_ms=sum(after.values()) if after else None,
        before_dtype=max(before, key=before.__getitem__, default=None),
        after_dtype=max(after, key=after.__getitem__, default=None),
    )


def _notes(before: Trace, after: Trace, per_step: bool) -> tuple[str, ...]:
    notes = [NOISE]
    if before.device_type != after.device_type:
        notes.append(
            f"BEFORE is a trace of a {before.device_type} and AFTER one of a {after.device_type}: the device differs."
        )
    if not per_step:
        notes.append(
            "The times of operations are of the whole traces, because not both have step markers: they are comparable "
            "only if both traces have the same number of steps."
        )
    if _has_unpaired(before.kernels) or _has_unpaired(after.kernels):
        notes.append("Kernels that the trace assigns to no operation are paired by what they compute only.")
    return tuple(notes)


def _has_unpaired(kernels: Sequence[Operation]) -> bool:
    return any(not kernel.name for kernel in kernels)
