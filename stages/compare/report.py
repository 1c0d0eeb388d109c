"""The comparison as one HTML page that needs nothing else: no script, no font, no network."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jinja2

from stages.compare import sections
from stages.compare.charts import HEIGHT, WIDTH, accuracy_chart
from stages.compare.comparison import TRAIN, Candidate, Comparison
from stages.compare.metric_rows import metric_rows
from stages.compare.plots import plot_tables
from stages.compare.wording import SYNTHETIC_NOTE, margin_text, measure_label, verdict_sentence


def render_report(comparison: Comparison) -> str:
    """The whole page as HTML."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("stages.compare", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html.j2").render(report_view(comparison))


def report_view(comparison: Comparison) -> dict[str, Any]:
    """Everything that the page shows, already in words, numbers with units, and positions."""
    study = comparison.study
    return {
        "device": study.environment.get("device", ""),
        "synthetic_note": SYNTHETIC_NOTE if study.synthetic else None,
        "baseline": study.baseline.variant,
        "variants": [arm.variant for arm in study.arms],
        "verdicts": [_verdict(candidate, comparison) for candidate in comparison.candidates],
        "speed": sections.speed(comparison),
        "accuracy": sections.accuracy(comparison),
        "rows": metric_rows(study),
        "breakdown": sections.breakdown(study.arms),
        "epochs": accuracy_chart(plot_tables(comparison)["accuracy_by_epoch"]),
        "chart_width": WIDTH,
        "chart_height": HEIGHT,
        "latency": sections.latency(comparison),
        "memory": sections.memory(study.arms),
        "operations": [
            view for candidate in comparison.candidates if (view := sections.operations(candidate, comparison))
        ],
        "settings": _settings(comparison),
        "machine": list(_flat(study.environment)),
        "warnings": _warnings(comparison),
    }


def _verdict(candidate: Candidate, comparison: Comparison) -> dict[str, Any]:
    return {
        "variant": candidate.variant,
        "verdict": candidate.verdict,
        "sentence": verdict_sentence(candidate, comparison),
        "others": [
            {"label": measure_label(measure), "verdict": verdict}
            for measure, verdict in candidate.verdicts.items()
            if measure != TRAIN and candidate.speedups
        ],
        "reasons": [{"reason": reason, "evidence": list(_flat(reason.evidence))} for reason in candidate.reasons],
    }


def _settings(comparison: Comparison) -> list[tuple[str, str]]:
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
    return found + (list(_flat(study.baseline.profile.configuration)) if study.baseline.profile else [])


def _counts(images: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {split}" for split, count in images.items())


def _warnings(comparison: Comparison) -> list[dict[str, str]]:
    return [
        {"variant": arm.variant, "text": warning}
        for arm in comparison.study.arms
        if arm.profile is not None
        for warning in arm.profile.warnings
    ]


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Nested values as (dotted name, text) pairs; empty ones are left out."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list) and value and all(isinstance(inner, dict) for inner in value):
        for number, inner in enumerate(value, start=1):
            rest = {key: field for key, field in inner.items() if key != "type"}
            yield from _flat(rest, f"{name}.{inner.get('type', number)}")
    elif isinstance(value, list | tuple):
        if value:
            yield name, ", ".join(map(str, value))
    elif isinstance(value, float):
        yield name, f"{value:.4g}"
    elif value is not None and value != "":
        yield name, value if isinstance(value, str) else json.dumps(value)
