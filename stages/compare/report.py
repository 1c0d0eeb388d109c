"""The comparison as one HTML page that needs nothing else: no script, no font, no network."""

from __future__ import annotations

from typing import Any

import jinja2

from stages.compare.charts import HEIGHT, WIDTH, accuracy_chart
from stages.compare.comparison import TRAIN, Candidate, Comparison
from stages.compare.evidence import Reason
from stages.compare.metric_rows import metric_rows
from stages.compare.plots import plot_tables
from stages.compare.sections import accuracy, method, resources, speed, step
from stages.compare.settling import what_would_settle
from stages.compare.wording import SYNTHETIC_NOTE, measure_label, verdict_sentence


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
        "reasons": _reasons(comparison),
        "speed": speed.speed(comparison),
        "limits": speed.limits(comparison),
        "to_accuracy": speed.to_accuracy(comparison),
        "accuracy": accuracy.accuracy(comparison),
        "health": accuracy.health(comparison),
        "rows": metric_rows(study),
        "breakdown": step.breakdown(study.arms),
        "operations": [view for item in comparison.candidates if (view := step.operations(item))],
        "epochs": accuracy_chart(plot_tables(comparison)["accuracy_by_epoch"]),
        "chart_width": WIDTH,
        "chart_height": HEIGHT,
        "latency": resources.latency(comparison),
        "memory": resources.memory(comparison),
        "settings": method.settings(comparison),
        "machine": [pair for pair in method.flat(study.environment) if pair[0] != "sha256"],
        "warnings": method.warnings(comparison),
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
        "settle": what_would_settle(candidate, comparison),
    }


def _reasons(comparison: Comparison) -> list[dict[str, Any]]:
    """Of every arm that has some, the baseline first."""
    by_arm: dict[str, tuple[Reason, ...]] = {comparison.study.baseline.variant: comparison.baseline_reasons}
    by_arm |= {candidate.variant: candidate.reasons for candidate in comparison.candidates}
    return [
        {
            "variant": variant,
            "entries": [{"reason": reason, "evidence": list(method.flat(reason.evidence))} for reason in reasons],
        }
        for variant, reasons in by_arm.items()
        if reasons
    ]
