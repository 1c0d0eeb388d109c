"""The limit: the best speed-up that the baseline's own trace allows.

Amdahl's law for three kinds of time. A step of S ms has M ms of matrix work, B ms of memory-bound work, and the rest,
R = S - M - B (launches, input, unknown operations):

    limit = S / (R + M / r + B / 2)

r is the ratio of the peak rates of dense 16-bit and 32-bit matrix products; `hardware` has the values and their
sources. Memory-bound work moves half the bytes; that it takes half the time at best is an assumption. The rest does not
become faster.

Where a step waits for input, as measured without a trace, the cached part c of it can shrink by a share g at most, that
of its compute time by the same formula or all of it where that is not known:

    limit = 1 / (1 - g c)

The smaller of the two limits counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from halfstep.compare.explain.accounts import calm_steps_ms
from halfstep.compare.explain.hardware import PeakRatios, peak_ratios
from halfstep.compare.explain.waiting import waiting
from halfstep.operations.op_types import op_category
from halfstep.results.comparison import Waiting
from halfstep.results.profile import HOST, AccountRow, InForce, Profile


@dataclass(frozen=True)
class StepTimes:
    """Time of a traced step by kind, in milliseconds; `tf32_ms` is the part of `matrix_ms` in TF32."""

    step_ms: float
    matrix_ms: float
    memory_ms: float
    tf32_ms: float = 0.0

    @property
    def rest_ms(self) -> float:
        """The part that no precision makes faster."""
        return self.step_ms - self.matrix_ms - self.memory_ms


def train_limit(baseline: Profile, candidate: Profile, environment: dict[str, Any]) -> float | None:
    """Best speed-up of training that the candidate's precision can bring over the baseline, a ratio.

    None if it is unknown: neither a trace with operations nor a measured wait for input, or a candidate that does not
    lower the precision or also changes other settings. The trace counts only on a GPU whose peak rates are known, and
    on a CPU with hardware for the candidate's type.
    """
    if not _differs_in_precision_only(baseline, candidate):
        return None
    work, ratios = work_of(baseline), peak_ratios(candidate.dtype_policy.compute, environment, on_gpu=baseline.on_gpu)
    by_trace = [best_speedup(work, ratios)] if work and ratios else []
    found = waiting(baseline.input_rounds)
    by_input = [input_limit(found, work, ratios)] if found is not None and found.bound is not None else []
    return min([*by_trace, *by_input], default=None)


def precision_bound(baseline: Profile, candidate: Profile) -> Waiting | None:
    """The wait for input that bounds what a lower precision alone can bring; None if it bounds nothing."""
    if not _differs_in_precision_only(baseline, candidate):
        return None
    found = waiting(baseline.input_rounds)
    return found if found is not None and found.bound is not None else None


def possible_ratios(baseline: Profile, candidate: Profile, environment: dict[str, Any]) -> PeakRatios | None:
    """What the processor can gain from the candidate's precision; None if unknown, or if other settings differ too."""
    if not _differs_in_precision_only(baseline, candidate):
        return None
    return peak_ratios(candidate.dtype_policy.compute, environment, on_gpu=baseline.on_gpu)


def _differs_in_precision_only(baseline: Profile, candidate: Profile) -> bool:
    is_lower = candidate.dtype_policy.compute.bits < baseline.dtype_policy.compute.bits
    return is_lower and _other_settings(baseline) == _other_settings(candidate)


def input_limit(found: Waiting, work: StepTimes | None, ratios: PeakRatios | None) -> float:
    """The limit of a step that waits for input, a ratio."""
    shrinks = 1.0
    if work is not None and ratios is not None and (compute := work.matrix_ms + work.memory_ms) > 0:
        shrinks = 1 - 1 / best_speedup(StepTimes(compute, work.matrix_ms, work.memory_ms, work.tf32_ms), ratios)
    return 1 / (1 - shrinks * (1 - found.share))


def best_speedup(work: StepTimes, ratios: PeakRatios) -> float:
    """The limit by this module's formula, a ratio."""
    matrix_ms = (work.matrix_ms - work.tf32_ms) / ratios.matrix + work.tf32_ms / ratios.matrix_from_tf32
    return work.step_ms / (work.rest_ms + matrix_ms + work.memory_ms / ratios.memory)


def limit_if_compute_faster(step_ms: float, compute_ms: float, times: float) -> float:
    """Speed-up of a step whose compute time alone shrinks by `times` (Amdahl); `math.inf` removes it."""
    return step_ms / (step_ms - compute_ms + compute_ms / times)


def work_of(profile: Profile) -> StepTimes | None:
    """Splits a profile's step by the shares of its compute time; None if its trace does not show them."""
    if not profile.account.empty:
        return _accounted_work(profile)
    step_ms, total_ms = profile.metrics.get("profiler/step_time_ms"), compute_ms(profile)
    shares = _measured_shares(profile)
    if not step_ms or total_ms is None or shares is None:
        return None
    matrix_ms, memory_ms, tf32_ms = (share * min(total_ms, step_ms) for share in shares)
    return StepTimes(step_ms, matrix_ms, memory_ms, min(tf32_ms, matrix_ms))


def _accounted_work(profile: Profile) -> StepTimes:
    """Splits the step by short traces, scaled to the calm step without the profiler."""
    repeats = profile.account["process"].unique()
    by_part = profile.account.groupby(["kind", "operation", "dtype"])["time_ms"].sum() / len(repeats)
    traced_ms, calm_ms = float(by_part.sum()), calm_steps_ms(profile.rounds)
    step_ms = float(calm_ms[calm_ms.index.isin(repeats)].mean()) if calm_ms.index.isin(repeats).any() else traced_ms
    scale = step_ms / traced_ms
    times = {"rest": 0.0, "matrix": 0.0, "memory": 0.0, "tf32": 0.0}
    for (kind, operation, dtype), time_ms in by_part.items():
        times[_part(kind, operation)] += scale * time_ms
        times["tf32"] += scale * time_ms if (_part(kind, operation), dtype) == ("matrix", "tf32") else 0.0
    return StepTimes(step_ms, times["matrix"], times["memory"], times["tf32"])


def share_at_limit(kind: str, operation: str, dtype: str, ratios: PeakRatios) -> float:
    """What is left of an operation's time where a precision gains as much as the processor can, as a share."""
    part = _part(kind, operation)
    matrix = ratios.matrix_from_tf32 if dtype == "tf32" else ratios.matrix
    return 1 / {"rest": 1.0, "matrix": matrix, "memory": ratios.memory}[part]


def _part(kind: str, operation: str) -> Literal["rest", "matrix", "memory"]:
    """What bounds the operations of an account: nothing is known to be faster than memory-bound work at best."""
    if kind in (HOST, "input"):
        return "rest"
    return "matrix" if op_category(operation) == "matrix" else "memory"


def compute_ms(profile: Profile) -> float | None:
    """Compute time in the traced step, in milliseconds: on the GPU, or on the host without one."""
    return profile.metrics.get(f"profiler/{'device' if profile.on_gpu else 'host'}_compute_ms")


def compute_operations(profile: Profile) -> list[AccountRow]:
    """What computes in a step, in the mean over the repeats: neither the host nor the input."""
    account = profile.account[~profile.account["kind"].isin((HOST, "input"))].assign(process=0)
    parts = account.groupby([name for name in account if name != "time_ms"], dropna=False)["time_ms"].sum()
    rows = (parts / profile.account["process"].nunique()).reset_index().astype(object)
    return [AccountRow(**row) for row in rows.where(rows.notna(), None).to_dict("records")]


def is_matrix(operation: AccountRow) -> bool:
    """Whether it multiplies matrices, which convolutions do too."""
    return op_category(operation.operation) == "matrix"


def _other_settings(profile: Profile) -> InForce:
    """The settings in force that change what a step consists of; oneDNN has no effect on a GPU."""
    neutral: dict[str, Any] = {"policy": "", "tf32": True, "learning_rate": None} | (
        {"onednn": True} if profile.on_gpu else {}
    )
    return profile.summary.in_force.model_copy(update=neutral)


def _measured_shares(profile: Profile) -> tuple[float, float, float] | None:
    matrix, memory = (profile.metrics.get(f"profiler/{name}_percent") for name in ("matrix", "memory_bound"))
    if matrix is None or memory is None:
        return None
    return matrix / 100, memory / 100, profile.metrics.get("profiler/compute_tf32_percent", 0.0) / 100
