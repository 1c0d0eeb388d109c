"""Why a candidate is faster or slower, each reason with the numbers of this run that show it.

`REASONS` is a table of small functions: measurements in, a reason or None out. A function that lacks the numbers it
needs returns None: what this machine cannot show is not claimed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stages.compare.arms import Profile
from stages.compare.evidence import Measurements, Reason
from stages.compare.reasons.ceilings import at_limit, memory_bound
from stages.compare.reasons.emulation import emulated_float16, slow_16bit_ops
from stages.compare.reasons.overhead import cast_overhead, input_bound, kernel_launch, model_too_small
from stages.compare.reasons.precision import mostly_32bit_ops, no_16bit_ops, no_tensor_cores, tensor_cores_idle
from stages.compare.reasons.settings import baseline_is_tf32, onednn_differs, sizes_not_multiple_of_8, xla_differs
from stages.compare.reasons.stability import arm_failed, loss_scale_collapse

__all__ = ["REASONS", "arm_failed", "explain", "explain_profile"]

REASONS: tuple[Callable[[Measurements], Reason | None], ...] = (
    emulated_float16,
    slow_16bit_ops,
    no_tensor_cores,
    tensor_cores_idle,
    no_16bit_ops,
    mostly_32bit_ops,
    memory_bound,
    at_limit,
    input_bound,
    kernel_launch,
    model_too_small,
    cast_overhead,
    sizes_not_multiple_of_8,
    baseline_is_tf32,
    xla_differs,
    onednn_differs,
    loss_scale_collapse,
)


def explain(measurements: Measurements) -> tuple[Reason, ...]:
    """Every reason that the measurements support, those that explain the most time first."""
    found = [reason for rule in REASONS if (reason := rule(measurements)) is not None]
    return tuple(sorted(found, key=lambda reason: -(reason.time_ms or 0.0)))


def explain_profile(profile: Profile, environment: dict[str, Any]) -> tuple[Reason, ...]:
    """What stands in the way of one run by itself, compared with nothing: what to change first."""
    return explain(Measurements(None, profile, (), None, environment))
