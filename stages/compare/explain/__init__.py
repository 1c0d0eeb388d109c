"""Why a candidate is faster or slower: reasons, each with the numbers that support it.

A rule is a function from `Evidence` to a reason or None. A rule whose numbers were not measured returns None.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stages.compare.explain.emulation import emulated_float16, slow_16bit_ops
from stages.compare.explain.evidence import Evidence
from stages.compare.explain.headroom import at_limit, memory_bound
from stages.compare.explain.overhead import cast_overhead, input_bound, kernel_launch, model_too_small
from stages.compare.explain.precision import mostly_32bit_ops, no_16bit_ops, no_tensor_cores, tensor_cores_idle
from stages.compare.explain.settings import baseline_is_tf32, onednn_differs, sizes_not_multiple_of_8, xla_differs
from stages.compare.explain.stability import arm_failed, loss_scale_collapse
from stages.results.comparison import Reason
from stages.results.profile import Profile

__all__ = ["RULES", "arm_failed", "explain", "explain_profile"]

RULES: tuple[Callable[[Evidence], Reason | None], ...] = (
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


def explain(data: Evidence) -> tuple[Reason, ...]:
    """Every reason that the evidence supports, those that explain the most time first."""
    found = [reason for rule in RULES if (reason := rule(data)) is not None]
    return tuple(sorted(found, key=lambda reason: -(reason.time_ms or 0.0)))


def explain_profile(profile: Profile, environment: dict[str, Any]) -> tuple[Reason, ...]:
    """What limits one profile by itself, without a comparison."""
    return explain(Evidence(None, profile, (), None, environment))
