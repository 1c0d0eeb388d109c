"""The comparison as one self-contained HTML page: no scripts, fonts or network."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import jinja2

from halfstep.compare.report import layers, sections, serving, speed, tables
from halfstep.compare.report.answer import answers
from halfstep.compare.report.charts import HEIGHT, WIDTH, score_chart
from halfstep.compare.report.head import question, what_was_compared
from halfstep.compare.report.waterfall import waterfall
from halfstep.compare.scale import Scale
from halfstep.compare.study import Study
from halfstep.compare.text import SYNTHETIC_NOTE, ratio_text, speed_only_note, verdict_text
from halfstep.errors import printable
from halfstep.results.comparison import Candidate, Comparison, Reason, Setup
from halfstep.results.profile import GpuConditions, Protocol
from halfstep.text import TRAIN, capitalized, measure_label, number_text, percent_text

NO_STUDY_NOTE = "The tables of metrics and the curves are left out: the folders of this study are not here."


def render_report(comparison: Comparison, study: Study | None, run_id: str | None = None) -> str:
    """The whole page.

    Args:
        comparison: what the page says.
        study: from which the tables of metrics and the curves come, which are left out without it.
        run_id: of the run of `compare` in MLflow.
    """
    return _template().render(report_view(comparison, study, run_id))


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("halfstep.compare.report", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_visible,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html.j2")


def _visible(value: Any) -> Any:
    """Text with visible control characters. Names of layers and environment variables may contain any character."""
    return printable(value) if type(value) is str else value  # Markup is the output of a macro


def report_view(comparison: Comparison, study: Study | None, run_id: str | None = None) -> dict[str, Any]:
    """Everything that the page says, as text, numbers with units, and positions."""
    candidates, setup = comparison.candidates, comparison.setup
    heads, batches = tables.batch_table(comparison)
    is_fraction = comparison.score is not None and comparison.score.unit == "fraction"
    protocol = setup.protocol if setup else None
    view = {
        "question": question(comparison),
        "answers": answers(comparison),
        "alerts": list(_alerts(comparison)),
        "compared": what_was_compared(comparison, run_id),
        "notes": [*([] if study else [NO_STUDY_NOTE]), *(comparison.notes or ())],
        "speed_only": comparison.speed_only,
        "interleaved": protocol is None or protocol.interleaved,
        "baseline": comparison.baseline,
        "verdicts": [_verdict(name, item, comparison) for name, item in candidates.items()],
        "reasons": _reasons(comparison),
        "batches": batches,
        "batch_columns": heads,
        "at_equal_batch": [comparison.baseline, *tables.at_equal_batch(comparison)],
        "speed": speed.speed(comparison),
        "limits": speed.limits(comparison),
        "quality": sections.quality(comparison, setup.task.examples_word if setup else "examples"),
        "accounts": [view for name, item in candidates.items() if (view := waterfall(name, comparison.baseline, item))],
        "operations": [view for name, item in candidates.items() if (view := sections.operations(name, item))],
        "memory": sections.memory(comparison, study),
        "serving": serving.view(comparison),
        "score": comparison.score.name if comparison.score else "score",
        "settings": _settings(comparison),
        "machine": [pair for pair in flat(comparison.environment) if pair[0] != "sha256"],
        "warnings": _warnings(setup) if setup else [],
        "verdict_count": max(1, sum(len(item.tests or ()) for item in candidates.values())),
        "chart_width": WIDTH,
        "chart_height": HEIGHT,
        **(_of_study(comparison, study, is_fraction=is_fraction) if study else _WITHOUT_STUDY),
    }
    return {**view, "contents": [(name, title) for name, title in _CONTENTS.items() if view.get(name, True)]}


_CONTENTS = {
    "speed": "Speed",
    "batches": "At other batches",
    "quality": "Quality",
    "serving": "Serving",
    "reasons": "Why",
    "accounts": "What changed in a step",
    "details": "Details",
}


def _alerts(comparison: Comparison) -> Iterator[str]:
    """What a reader must know before anything else: a busy machine, and verdicts that say nothing about quality."""
    if (note := headline_note(comparison)) is not None:
        yield note
    protocol = comparison.setup.protocol if comparison.setup else None
    for text in protocol.warnings if protocol else ():
        is_of_a_variant = text.split(maxsplit=1)[0].endswith(":")
        yield f"{text}." if is_of_a_variant else f"{capitalized(text)}."


_WITHOUT_STUDY: dict[str, Any] = dict.fromkeys(
    ("to_score", "loss_scales", "rows", "breakdown", "epochs", "latency", "layers")  # the sections of `_of_study`
)


def _of_study(comparison: Comparison, study: Study, *, is_fraction: bool) -> dict[str, Any]:
    """The tables of metrics and the curves."""
    return {
        "to_score": sections.to_score(study, is_fraction=is_fraction),
        "loss_scales": sections.loss_scales(study),
        "rows": _metric_rows(comparison, study),
        "breakdown": sections.breakdown(study),
        "epochs": score_chart(tables.score_by_epoch(study), is_fraction=is_fraction),
        "latency": sections.latency(study),
        "layers": _layers(study),
    }


def _layers(study: Study) -> dict[str, Any] | None:
    """The layers of the model under each variant; None where no model was looked at."""
    profiles = {item.variant: item.profile for item in study.variants}
    audits = {name: profile.audit for name, profile in profiles.items() if profile is not None and profile.audit}
    if not audits:
        return None
    return {
        "heads": (*layers.COLUMNS, *audits),
        "rows": layers.layer_rows(audits),
        "variants": [
            {"name": name, "totals": layers.total_text(audit), "findings": layers.finding_texts(audit)}
            for name, audit in audits.items()
        ],
    }


def headline_note(comparison: Comparison) -> str | None:
    """What the whole comparison does not say, if anything."""
    if comparison.speed_only:
        return speed_only_note(comparison.why_speed_only)
    data = comparison.setup.data if comparison.setup else None
    return SYNTHETIC_NOTE if data is not None and data.synthetic else None


def _verdict(name: str, candidate: Candidate, comparison: Comparison) -> dict[str, Any]:
    return {
        "variant": name,
        "verdict": candidate.verdict,
        "word": verdict_text(candidate.verdict, speed_only=comparison.speed_only),
        "sentence": candidate.sentence,
        "further": candidate.sentences[1:],
        "next_steps": candidate.next_steps,
    }


def _reasons(comparison: Comparison) -> list[dict[str, Any]]:
    """The reasons of every variant that has some, the baseline first."""
    found = comparison.reasons.items()
    return [{"variant": name, "entries": list(map(_reason, reasons))} for name, reasons in found if reasons]


def _reason(reason: Reason) -> dict[str, Any]:
    return {"reason": reason, "measure": measure_label(reason.measure), "evidence": list(flat(reason.evidence))}


def _metric_rows(comparison: Comparison, study: Study) -> list[dict[str, Any]]:
    """The rows of the table of all metrics: cells of value and comparison with the baseline, the baseline first."""
    candidates = tables.at_equal_batch(comparison)
    return [
        {
            "label": row.label,
            "unit": row.unit,
            "cells": [
                (row.text(comparison.baseline), ""),
                *((row.text(name), compared(row.measure, item)) for name, item in candidates.items()),
            ],
        }
        for row in tables.metric_rows(study, comparison.score)
    ]


def compared(measure: str | None, candidate: Candidate) -> str:
    """What stands below a metric of a candidate: the comparison with the baseline, if there is one."""
    if measure == tables.QUALITY and candidate.quality is not None:
        return Scale.of(candidate.quality).change(candidate.quality)
    return ratio_text(candidate.speedups[measure]) if measure in candidate.speedups else ""


def _settings(comparison: Comparison) -> list[tuple[str, str]]:
    """What all variants have in common, and what was declared beforehand."""
    setup, candidates = comparison.setup, comparison.candidates.values()
    found = [_data(setup)] if setup else []
    quality = next((item.quality for item in candidates if item.quality), None)
    if quality is not None:
        found.append(("quality margin", Scale.of(quality).margin_text))
    found.append(("smallest speed-up worth having", f"{comparison.min_speedup:g}×"))
    training = next((item.speedups[TRAIN] for item in candidates if item.speedups), None)
    if training is not None:
        found.append(("counted rounds of training", f"{training.rounds:,} in {training.n} repeats"))
    if setup is None or setup.protocol is None or setup.configuration is None:
        return found
    found.append(("compiled with XLA", _compiled(setup, 1 + sum(bool(item.speedups) for item in candidates))))
    return [*found, *_protocol(setup.protocol), *flat(setup.configuration.model_dump(mode="json"))]


def _compiled(setup: Setup, variants: int) -> str:
    """The variants that were compiled with XLA: the verdicts are about that program."""
    return "no variant" if not setup.xla else "all variants" if len(setup.xla) == variants else ", ".join(setup.xla)


def _data(setup: Setup) -> tuple[str, str]:
    """What was trained on."""
    if setup.data is None:
        return "task", f"{setup.task.name}: {setup.task.examples:,} test examples"
    counts = ", ".join(f"{count:,} {split}" for split, count in setup.data.images.items())
    return "images", f"{setup.data.source}: {counts}"


def _protocol(protocol: Protocol) -> Iterator[tuple[str, str]]:
    yield "seconds of timing", number_text(protocol.timing_seconds)
    yield "why the timing ended", protocol.ended_by_text
    yield "target half-width of each interval", f"{protocol.target_precision:g} (as a ratio)"
    looks = [ending.looks for of_one in protocol.endings.values() for ending in of_one.values()]
    if looks:
        yield "times that an interval was looked at", f"at most {max(looks)}; it is 95 % over all of them together"
    if protocol.stage_seconds is not None:
        yield "seconds from the start of profile to the end of the timing", number_text(protocol.stage_seconds)
    yield "variants take turns", "yes" if protocol.interleaved else "no, one is measured at a time"
    if protocol.bridge_seconds is not None:
        yield "seconds of it for the baseline with other settings", number_text(protocol.bridge_seconds)
    if protocol.control_seconds is not None:
        yield "seconds of it for the control", number_text(protocol.control_seconds)
    if protocol.account_seconds is not None:
        yield "seconds of it for short traces", number_text(protocol.account_seconds)
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
        "SM clock in MHz": (gpu.sm_clock_mhz, gpu.max_sm_clock_mhz),
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


def _warnings(setup: Setup) -> list[dict[str, str]]:
    """Warnings about each variant."""
    return [{"variant": variant, "text": text} for variant, texts in setup.warnings.items() for text in texts]


def flat(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Nested values as pairs of a name in words and a text, such as `operations: Conv2D, baseline (ms)`.

    Empty ones are left out.
    """
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from flat(inner, f"{name}, {_words(str(key))}" if name else _words(str(key)))
    elif isinstance(value, list) and value and all(isinstance(inner, dict) for inner in value):
        for number, inner in enumerate(value, start=1):
            rest = {key: field for key, field in inner.items() if key != "type"}
            yield from flat(rest, f"{name} {inner.get('type', number)}")
    elif isinstance(value, list | tuple):
        if value:
            yield name, ", ".join(map(str, value))
    elif isinstance(value, float):
        yield name, number_text(value)
    elif value is not None and value != "":
        yield name, value if isinstance(value, str) else json.dumps(value)


def _words(key: str) -> str:
    """A key in words, with its unit in brackets."""
    if not re.fullmatch(r"[a-z0-9_/]+", key):
        return key  # a name that the user or TensorFlow gave
    words = key.removeprefix("profiler/").replace("_", " ")
    for unit, text in {" ms": "ms", " percent": "%", " mib": "MiB", " gib": "GiB", " seconds": "s"}.items():
        if words.endswith(unit):
            return f"{words.removesuffix(unit)} ({text})"
    return words
