"""How it was measured, and on what."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from stages.compare.comparison import TRAIN, Comparison
from stages.compare.wording import margin_text

_ENDED_BY = {
    "target_precision": "the intervals were narrow enough (profile.target_precision)",
    "max_seconds": "the time was up (profile.max_seconds)",
    "rounds": "all rounds were played (profile.rounds)",
}


def settings(comparison: Comparison) -> list[tuple[str, str]]:
    """What all arms had in common, and what was declared beforehand."""
    study, params = comparison.study, comparison.params
    found = [
        ("images", f"{study.data.get('source', '')}: {_counts(study.data.get('images', {}))}"),
        ("accuracy margin", margin_text(params)),
        ("smallest speed-up worth having", f"{params.min_speedup:g}×"),
    ]
    training = next((item.speedups[TRAIN] for item in comparison.candidates if item.speedups), None)
    if training is not None:
        found.append(("paired rounds of training", f"{training.rounds} in {training.processes} processes"))
    profile = study.baseline.profile
    return found if profile is None else [*found, *_protocol(profile.protocol), *flat(profile.configuration)]


def _protocol(protocol: dict[str, Any]) -> Iterator[tuple[str, str]]:
    if "timing_seconds" in protocol:
        yield "seconds of timing", f"{protocol['timing_seconds']:,.0f}"
    if "ended_by" in protocol:
        yield "what ended it", _ENDED_BY.get(protocol["ended_by"], str(protocol["ended_by"]))
    if "target_precision" in protocol:
        yield "wanted half-width of each interval", f"{protocol['target_precision']:g} (as a ratio)"
    if "looks_held" in protocol:
        yield "looks at the intervals", f"{protocol['looks_held']}"
    yield "confidence of each interval", f"{100 * protocol['confidence']:g} %, so that 95 % hold with all looks"
    if protocol.get("other_load_cores") is not None:
        yield "cores kept busy by other programs", f"{protocol['other_load_cores']:.2f}"


def _counts(images: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {split}" for split, count in images.items())


def warnings(comparison: Comparison) -> list[dict[str, str]]:
    """What the measurement as a whole warns of, and that of each arm."""
    baseline = comparison.study.baseline.profile
    of_all = baseline.protocol.get("warnings", []) if baseline else []
    return [{"variant": "all variants", "text": warning} for warning in of_all] + [
        {"variant": arm.variant, "text": warning}
        for arm in comparison.study.arms
        if arm.profile is not None
        for warning in arm.profile.warnings
    ]


def flat(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Nested values as (dotted name, text) pairs; empty ones are left out."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from flat(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list) and value and all(isinstance(inner, dict) for inner in value):
        for number, inner in enumerate(value, start=1):
            rest = {key: field for key, field in inner.items() if key != "type"}
            yield from flat(rest, f"{name}.{inner.get('type', number)}")
    elif isinstance(value, list | tuple):
        if value:
            yield name, ", ".join(map(str, value))
    elif isinstance(value, float):
        yield name, f"{value:.4g}"
    elif value is not None and value != "":
        yield name, value if isinstance(value, str) else json.dumps(value)
