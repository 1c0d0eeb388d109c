"""Whether a comparison lets a pull request pass."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal

from halfstep.errors import GateError
from halfstep.files import shown_report
from halfstep.results.comparison import Candidate, Comparison


def check_gate(comparison: Comparison) -> None:
    """Checks that a candidate was adopted and no training failed.

    Raises:
        GateError: the gate fails; the message names the cause.
    """
    if (why := refusal(comparison.candidates, comparison.failed or ())) is not None:
        raise GateError(f"compare.gate: {why}; see {shown_report()}")


def gate_state(candidates: Mapping[str, Candidate], failed: Collection[str]) -> Literal["passed", "failed"]:
    """The state of the gate."""
    return "passed" if refusal(candidates, failed) is None else "failed"


def refusal(candidates: Mapping[str, Candidate], failed: Collection[str]) -> str | None:
    """Why the gate fails; None if it passes.

    Args:
        candidates: by name.
        failed: variants with a training that failed.
    """
    if failed:
        return f"a training of {', '.join(failed)} failed"
    if not any(item.verdict == "adopt" for item in candidates.values()):
        verdicts = ", ".join(f"{name} {item.verdict}" for name, item in candidates.items())
        return f"no candidate was adopted ({verdicts})"
    return None
