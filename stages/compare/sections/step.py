"""What a training step is made of, and what became of its operations."""

from __future__ import annotations

from typing import Any

from stages.compare.arms import Arm
from stages.compare.comparison import Candidate
from stages.compare.operations import OperationChange, gained, lost
from stages.compare.plots import STEP_PARTS, step_parts


def breakdown(arms: tuple[Arm, ...]) -> dict[str, Any] | None:
    """Stacked bars of the traced step, all on the scale of the longest."""
    parts = {arm.variant: shares for arm in arms if (shares := step_parts(arm.profile))}
    if not parts:
        return None
    longest_ms = max(sum(shares.values()) for shares in parts.values())
    shown = [
        part for part in STEP_PARTS if any(shares.get(part, 0.0) >= 0.005 * longest_ms for shares in parts.values())
    ]
    return {
        "parts": [{"name": part, "label": part.replace("_", " ")} for part in shown],
        "bars": [
            {
                "variant": variant,
                "total_ms": sum(shares.values()),
                "segments": [
                    {"part": part, "width": round(100 * shares[part] / longest_ms, 2), "time_ms": shares[part]}
                    for part in shown
                    if shares.get(part)
                ],
            }
            for variant, shares in parts.items()
        ],
    }


def operations(candidate: Candidate) -> dict[str, Any] | None:
    """The operations that gained and that lost most time a step; None where nothing was traced."""
    tables = {"gained": gained(candidate.operation_changes), "lost": lost(candidate.operation_changes)}
    found = [
        {"title": title, "rows": [_operation(change) for change in changes]}
        for title, changes in tables.items()
        if changes
    ]
    return {"variant": candidate.variant, "tables": found} if found else None


def _operation(change: OperationChange) -> dict[str, Any]:
    return {
        "layer": change.layer,
        "operation": change.operation,
        "before_ms": change.baseline_ms,
        "after_ms": change.candidate_ms,
        "delta": f"{'+' if change.delta_ms > 0 else '−'}{abs(change.delta_ms):.3f}",
        "dtypes": _dtypes(change),
    }


def _dtypes(change: OperationChange) -> str:
    before, after = change.baseline_dtype or "?", change.candidate_dtype or "?"
    if change.baseline_ms is None:
        return f"new, {after}"
    if change.candidate_ms is None:
        return f"{before}, gone"
    return after if before == after else f"{before} → {after}"
