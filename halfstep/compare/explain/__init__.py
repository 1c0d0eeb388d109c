"""Why a candidate is faster or slower: reasons, each with the numbers that support it.

A rule is a function from `Evidence` to a reason or None; a rule that holds for any measure also takes the measure. A
rule whose numbers were not measured returns None, and so does one whose measured difference may be 0.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from halfstep.compare.explain.emulation import operations_in_16bit
from halfstep.compare.explain.evidence import Evidence
from halfstep.compare.explain.headroom import at_limit, memory_bound
from halfstep.compare.explain.overhead import cast_overhead, input_bound, kernel_launch, model_too_small
from halfstep.compare.explain.precision import mostly_32bit_ops, no_16bit_ops, no_tensor_cores, tensor_cores_idle
from halfstep.compare.explain.settings import (
    baseline_is_tf32,
    layout_changes,
    onednn_differs,
    settings_not_precision,
    sizes_not_multiple,
    xla_chosen_differently,
    xla_differs,
    xla_not_in_force,
)
from halfstep.compare.explain.stability import arm_failed, gradient_underflow, loss_scale_collapse, same_weights_missing
from halfstep.compare.explain.timing import control_differs, fixed_overhead, stalls, throttled
from halfstep.compare.explain.untried import onednn_off, small_batch, step_overhead
from halfstep.results.comparison import Reason
from halfstep.results.profile import Profile
from halfstep.text import TRAIN

__all__ = ["arm_failed", "explain", "explain_profile"]

_TRAIN_RULES: tuple[Callable[[Evidence], Reason | None], ...] = (
    operations_in_16bit,
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
    sizes_not_multiple,
    layout_changes,
    baseline_is_tf32,
    xla_not_in_force,
    xla_chosen_differently,
    loss_scale_collapse,
    gradient_underflow,
    step_overhead,
    small_batch,
    onednn_off,
)
_RULES: tuple[Callable[[Evidence, str], Reason | None], ...] = (
    throttled,
    control_differs,
    stalls,
    settings_not_precision,
    onednn_differs,
    xla_differs,
    fixed_overhead,
    same_weights_missing,
)


def explain(data: Evidence) -> tuple[Reason, ...]:
    """Every reason that the evidence supports, training first; of a measure, those that explain the most time first.

    What makes a measure void comes before all others of it.
    """
    measures = list(dict.fromkeys((TRAIN, *data.speedups)))
    results = [rule(data) for rule in _TRAIN_RULES]
    results += [rule(data, measure) for measure in measures for rule in _RULES]
    reasons = [reason for reason in results if reason is not None]
    return tuple(sorted(reasons, key=lambda reason: (measures.index(reason.measure), *_order(reason))))


def _order(reason: Reason) -> tuple[bool, float]:
    return reason.code not in ("throttled", "control_differs"), -(reason.time_ms or 0.0)


def explain_profile(
    profile: Profile, environment: dict[str, Any], tried: Collection[str] = (), classes: int | None = None
) -> tuple[Reason, ...]:
    """What limits one profile by itself, without a comparison; `tried` are policies that are no advice."""
    return explain(Evidence(None, profile, (), {}, environment, rejected=tried, classes=classes))
