"""Whether a comparison lets a pull request pass: because a candidate is adopted, or because none is slower or worse."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from halfstep.compare.text import ratio_text
from halfstep.errors import GateError
from halfstep.files import shown_report
from halfstep.params import CompareParams
from halfstep.results.comparison import Candidate, Comparison, GateState
from halfstep.text import measure_text


class Gate(NamedTuple):
    """The state of the gate, and in words what it fails by, or else what it leaves open."""

    state: GateState
    text: str | None = None


class _Finding(NamedTuple):
    text: str
    is_shown: bool  # else it is open


def check_gate(comparison: Comparison) -> None:
    """Prints what the gate leaves open.

    Raises:
        GateError: the gate fails; the message names the cause.
    """
    if comparison.gate == "failed":
        raise GateError(f"compare.gate: {comparison.gate_text}; see {shown_report()}")
    if comparison.gate_text is not None:
        print(f"compare.gate passes; {comparison.gate_text}")


def gate_of(
    candidates: Mapping[str, Candidate], failed: Collection[str], void: Collection[str], params: CompareParams
) -> Gate:
    """Judges by `compare.gate`.

    Args:
        candidates: by name.
        failed: variants with a training that failed.
        void: measures that decide nothing.
        params: with the gate, which is not false.
    """
    if failed:
        return Gate("failed", f"a training of {', '.join(failed)} failed")
    if params.gate is True:
        if any(item.verdict == "adopt" for item in candidates.values()):
            return Gate("passed")
        verdicts = ", ".join(f"{name} {item.verdict}" for name, item in candidates.items())
        return Gate("failed", f"no candidate was adopted ({verdicts})")
    found = [finding for name, item in candidates.items() for finding in _findings(name, item, void, params)]
    wrong = [finding.text for finding in found if finding.is_shown or params.gate == "not_slower_strict"]
    if wrong:
        return Gate("failed", "; ".join(wrong))
    return Gate("passed", "; ".join(finding.text for finding in found) or None)


def _findings(name: str, item: Candidate, void: Collection[str], params: CompareParams) -> Iterator[_Finding]:
    """What speaks against a candidate: that it is slower or worse, or that this is not excluded."""
    least = 1 - params.max_slowdown
    required = f"at least {least:.2f}× is required (compare.max_slowdown)"
    if not item.speedups:
        yield _Finding(f"{name} was not measured", is_shown=False)
    for measure, ratio in item.speedups.items():
        what = f"{name} is {{}} in {measure_text(measure)}: {ratio_text(ratio)}, and {required}"
        if measure in void:
            yield _Finding(f"{name}: {measure_text(measure)} decides nothing in this run", is_shown=False)
        elif (side := ratio.side(least)) == "below":
            yield _Finding(what.format("slower"), is_shown=True)
        elif side == "open":
            yield _Finding(what.format("not shown to be as fast"), is_shown=False)
    qualities = {"": item.quality, " with the same weights": item.quality_same_weights}
    for suffix, quality in qualities.items():
        if quality is not None and quality.outcome == "refuted":
            yield _Finding(f"{name} loses more {quality.name} than the margin{suffix}", is_shown=True)
        elif quality is not None and quality.outcome != "shown":
            yield _Finding(f"{name} is not shown to have the same {quality.name}{suffix}", is_shown=False)
