"""Whether a comparison lets a pull request through."""

from __future__ import annotations

from typing import Literal

from stages.compare.comparison import Comparison
from stages.errors import GateError


def check_gate(comparison: Comparison) -> None:
    """Refuses a comparison in which nothing was adopted, or in which an arm failed.

    Raises:
        GateError: says which.
    """
    if (why := refusal(comparison)) is not None:
        raise GateError(f"compare.gate: {why}; see data/compare/report.html")


def gate_state(comparison: Comparison) -> Literal["passed", "failed"] | None:
    """How the gate stands; None where `compare.gate` asks for none."""
    if not comparison.params.gate:
        return None
    return "passed" if refusal(comparison) is None else "failed"


def refusal(comparison: Comparison) -> str | None:
    """Why the gate stays shut; None where it opens."""
    if comparison.failed_arms:
        return f"a training of {', '.join(arm.variant for arm in comparison.failed_arms)} failed"
    if not comparison.adopted:
        verdicts = ", ".join(f"{candidate.variant} {candidate.verdict}" for candidate in comparison.candidates)
        return f"no candidate was adopted ({verdicts})"
    return None
