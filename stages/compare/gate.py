"""Whether a comparison lets a pull request pass."""

from __future__ import annotations

from typing import Literal

from stages.compare.comparison import Comparison
from stages.errors import GateError


def check_gate(comparison: Comparison) -> None:
    """Checks that a candidate was adopted and no training failed.

    Raises:
        GateError: the gate fails; the message names the cause.
    """
    if (why := refusal(comparison)) is not None:
        raise GateError(f"compare.gate: {why}; see data/compare/report.html")


def gate_state(comparison: Comparison) -> Literal["passed", "failed"] | None:
    """The state of the gate; None without `compare.gate`."""
    if not comparison.params.gate:
        return None
    return "passed" if refusal(comparison) is None else "failed"


def refusal(comparison: Comparison) -> str | None:
    """Why the gate fails; None if it passes."""
    if comparison.failed:
        return f"a training of {', '.join(result.variant for result in comparison.failed)} failed"
    if not comparison.adopted:
        verdicts = ", ".join(f"{candidate.variant} {candidate.verdict}" for candidate in comparison.candidates)
        return f"no candidate was adopted ({verdicts})"
    return None
