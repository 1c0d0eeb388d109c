"""Every numeric parameter of `profile` at its lower bound, through the stage and the report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.params.schema import ProfileParams

if TYPE_CHECKING:
    from tests.pipeline.conftest import Checkout

JUST_ABOVE_0 = 1e-3
BOUNDS: dict[str, float] = {
    **{"processes": 2, "rounds": 1, "steps_per_round": 1, "warmup_steps": 1, "trace_steps": 2, "seed": 0},
    **{"target_precision": JUST_ABOVE_0, "max_seconds": JUST_ABOVE_0, "inference_calls_per_round": 1},
    **{"find_max_batch": True, "memory_limit_mib": 64},
}


def lower_bounds() -> dict[str, float]:
    """The numeric parameters with their lower bounds."""
    bounds = {}
    for name, field in ProfileParams.model_fields.items():
        for limit in field.metadata:
            if hasattr(limit, "ge"):
                bounds[name] = limit.ge
            elif hasattr(limit, "gt"):
                bounds[name] = JUST_ABOVE_0
    return bounds


def test_every_bound_is_tried() -> None:
    assert {name: value for name, value in BOUNDS.items() if name != "find_max_batch"} == lower_bounds()


def test_parameters_at_their_lower_bounds(copied: Checkout) -> None:
    copied.configure({f"profile.{name}": value for name, value in BOUNDS.items()})
    for stage in ("environment", "profile", "compare"):
        done = copied.stage(stage)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
    candidate = copied.json("data/compare/comparison.json")["candidates"]["mixed_bfloat16"]
    assert candidate["speedup"]["train"]["ratio"] > 0
