"""The comparison as one self-contained HTML page: no scripts, fonts or network."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jinja2

from stages.compare.comparison import TRAIN, Candidate, Comparison
from stages.compare.report import sections, speed, tables
from stages.compare.report.charts import HEIGHT, WIDTH, score_chart
from stages.compare.report.next_steps import next_steps
from stages.compare.report.scale import scale_of
from stages.compare.report.text import (
    SPEED_ONLY_NOTE,
    SYNTHETIC_NOTE,
    measure_label,
    notes,
    ratio_text,
    verdict_text,
)
from stages.compare.report.verdicts import verdict_sentence
from stages.errors import printable
from stages.results.comparison import Reason
from stages.results.profile import GpuConditions, Protocol
from stages.results.study import Study
from stages.text import number_text, percent_text


def render_report(comparison: Comparison) -> str:
    """The whole page."""
    return page_environment().get_template("report.html.j2").render(report_view(comparison))


def page_environment(*packages: str) -> jinja2.Environment:
    """What renders the templates of these packages, which may use those of this one."""
    loaders = [jinja2.PackageLoader(package, "templates") for package in (*packages, "stages.compare.report")]
    return jinja2.Environment(
        loader=jinja2.ChoiceLoader(loaders),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _shown(value: Any) -> Any:
    """Text with visible control characters. Names of layers and environment variables may contain any character."""
    return printable(value) if type(value) is str else value  # Markup is the output of a macro


def report_view(comparison: Comparison) -> dict[str, Any]:
    """Everything that the page shows, as text, numbers with units, and positions."""
    study = comparison.study
    return {
        "device": study.environment["device"],
        "notes": notes(comparison),
        "note": SPEED_ONLY_NOTE if comparison.speed_only else SYNTHETIC_NOTE if study.is_synthetic else None,
        "speed_only": comparison.speed_only,
        "interleaved": study.baseline.profile is None or study.baseline.profile.summary.protocol.interleaved,
        "baseline": study.baseline.variant,
        "variants": [result.variant for result in study.variants],
        "verdicts": [_verdict(candidate, comparison) for candidate in comparison.candidates],
        "reasons": _reasons(comparison),
        "speed": speed.speed(comparison),
        "limits": speed.limits(comparison),
        "to_score": sections.to_score(comparison),
        "quality": sections.quality(comparison),
        "loss_scales": sections.loss_scales(study),
        "rows": _metric_rows(comparison),
        "breakdown": sections.breakdown(study),
        "operations": [view for item in comparison.candidates if (view := sections.operations(item))],
        "epochs": score_chart(tables.score_by_epoch(study), is_fraction=comparison.is_fraction),
        "score": study.score_name,
        "chart_width": WIDTH,
        "chart_height": HEIGHT,
        "latency": sections.latency(comparison),
        "memory": sections.memory(comparison),
        "settings": _settings(comparison),
        "machine": [pair for pair in flat(study.environment) if pair[0] != "sha256"],
        "warnings": _warnings(comparison),
        "verdict_count": comparison.number_of_tests,
    }


def _verdict(candidate: Candidate, comparison: Comparison) -> dict[str, Any]:
    return {
        "variant": candidate.variant,
        "verdict": candidate.verdict,
        "word": verdict_text(candidate.verdict, speed_only=comparison.speed_only),
        "sentence": verdict_sentence(candidate, comparison),
        "others": [
            {
                "label": measure_label(measure),
                "verdict": verdict,
                "word": verdict_text(verdict, speed_only=comparison.speed_only),
            }
            for measure, verdict in candidate.verdicts.items()
            if measure != TRAIN and candidate.speedups
        ],
        "next_steps": next_steps(candidate, comparison),
    }


def _reasons(comparison: Comparison) -> list[dict[str, Any]]:
    """The reasons of every variant that has some, the baseline first."""
    by_variant: dict[str, tuple[Reason, ...]] = {comparison.study.baseline.variant: comparison.baseline_reasons}
    by_variant |= {candidate.variant: candidate.reasons for candidate in comparison.candidates}
    return [
        {
            "variant": variant,
            "entries": list(map(_reason, reasons)),
        }
        for variant, reasons in by_variant.items()
        if reasons
    ]


def _reason(reason: Reason) -> dict[str, Any]:
    return {"reason": reason, "measure": measure_label(reason.measure), "evidence": list(flat(reason.evidence))}


def _metric_rows(comparison: Comparison) -> list[dict[str, Any]]:
    """The rows of the table of all metrics: cells of value and comparison with the baseline, the baseline first."""
    baseline = comparison.study.baseline.variant
    return [
        {
            "label": row.label,
            "unit": row.unit,
            "cells": [
                (row.text(baseline), ""),
                *((row.text(item.variant), _compared(row.measure, item, comparison)) for item in comparison.candidates),
            ],
        }
        for row in tables.metric_rows(comparison)
    ]


def _compared(measure: str | None, candidate: Candidate, comparison: Comparison) -> str:
    if measure == tables.QUALITY and candidate.quality is not None:
        return scale_of(comparison).change(candidate.quality)
    return ratio_text(candidate.speedups[measure]) if measure in candidate.speedups else ""


def _settings(comparison: Comparison) -> list[tuple[str, str]]:
    """What all variants have in common, and what was declared beforehand."""
    study, params = comparison.study, comparison.params
    has_quality = any(item.quality for item in comparison.candidates)
    found = [
        _data(study),
        *([("quality margin", scale_of(comparison).margin_text)] if has_quality else []),
        ("smallest speed-up worth having", f"{params.min_speedup:g}×"),
    ]
    training = next((item.speedups[TRAIN] for item in comparison.candidates if item.speedups), None)
    if training is not None:
        found.append(("counted rounds of training", f"{training.rounds:,} in {training.processes} repeats"))
    if study.baseline.profile is None:
        return found
    summary = study.baseline.profile.summary
    found.append(("compiled with XLA", _compiled(study)))
    return [*found, *_protocol(summary.protocol), *flat(summary.configuration.model_dump(mode="json"))]


def _compiled(study: Study) -> str:
    """The variants that were compiled with XLA: the verdicts are about that program."""
    xla = {item.variant: item.profile.summary.in_force.xla for item in study.variants if item.profile is not None}
    on = [variant for variant, value in xla.items() if value]
    return "no variant" if not on else "all variants" if len(on) == len(xla) else ", ".join(on)


def _data(study: Study) -> tuple[str, str]:
    """What was trained on."""
    if study.data is None:
        return "task", f"{study.task.name}: {study.task.examples:,} test examples"
    counts = ", ".join(f"{count:,} {split}" for split, count in study.data.images.items())
    return "images", f"{study.data.source}: {counts}"


def _protocol(protocol: Protocol) -> Iterator[tuple[str, str]]:
    yield "seconds of timing", number_text(protocol.timing_seconds)
    yield "ended by", protocol.ended_by_text
    yield "target half-width of each interval", f"{protocol.target_precision:g} (as a ratio)"
    looks = [ending.looks for of_one in protocol.endings.values() for ending in of_one.values()]
    if looks:
        yield "looks at an interval, the last included", f"at most {max(looks)}; each interval is 95 % over all looks"
    if protocol.stage_seconds is not None:
        yield "seconds from the start of profile to the end of the timing", number_text(protocol.stage_seconds)
    yield "arms take turns", "yes" if protocol.interleaved else "no, one is measured at a time"
    if protocol.bridge_seconds is not None:
        yield "seconds of it for bridging arms", number_text(protocol.bridge_seconds)
    if protocol.control_seconds is not None:
        yield "seconds of it for the control", number_text(protocol.control_seconds)
    if protocol.drifting_processes:
        yield "repeats whose counted rounds still show a trend", f"{protocol.drifting_processes}"
    if protocol.other_load_cores is not None:
        yield "cores used by other programs", number_text(protocol.other_load_cores)
    for gpu in protocol.gpus:
        yield from ((f"{gpu.name}, {name}", text) for name, text in _gpu(gpu))


def _gpu(gpu: GpuConditions) -> Iterator[tuple[str, str]]:
    """What a GPU did during the rounds, as far as its driver reports it."""
    yield "UUID", gpu.uuid
    ranges = {
        "SM clock after a turn in MHz": (gpu.sm_clock_mhz, gpu.max_sm_clock_mhz),
        "temperature in °C": (gpu.temperature_c, None),
        "power in W": (gpu.power_w, gpu.power_limit_w),
    }
    for name, (found, limit) in ranges.items():
        if found is not None:
            most = "" if limit is None else f", at most {limit:,.0f}"
            yield name, f"{found[0]:,.0f} to {found[1]:,.0f}{most}"
    yield "share of the rounds in which it was throttled", percent_text(gpu.throttled, 1)
    for reason, share in gpu.reasons.items():
        yield f"share of the rounds with {reason}", percent_text(share, 1)
    if gpu.other_processes is not None:
        yield "other programs on it", f"{gpu.other_processes}"


def _warnings(comparison: Comparison) -> list[dict[str, str]]:
    """Warnings about the whole measurement, then those about each variant."""
    baseline = comparison.study.baseline.profile
    common = baseline.summary.protocol.warnings if baseline else ()
    return [{"variant": "all variants", "text": warning} for warning in common] + [
        {"variant": result.variant, "text": warning}
        for result in comparison.study.variants
        if result.profile is not None
        for warning in result.profile.summary.warnings
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
        yield name, number_text(value)
    elif value is not None and value != "":
        yield name, value if isinstance(value, str) else json.dumps(value)
