"""The report on several machines as one self-contained HTML page: no scripts, fonts or network."""

from __future__ import annotations

from typing import Any

from stages.compare.report.charts import Axis, interval
from stages.compare.report.html import page_environment
from stages.compare.text import verdict_text
from stages.fleet import report_text
from stages.fleet.combination import FleetReport, RowResult, TogetherResult
from stages.text import TRAIN, measure_label


def render_html(report: FleetReport) -> str:
    """The whole page."""
    return page_environment("stages.fleet").get_template("fleet.html.j2").render(_view(report))


def _view(report: FleetReport) -> dict[str, Any]:
    """Everything that the page shows, as text, numbers with units, and positions."""
    return {
        "baseline": report.baseline,
        "commit": report.commit[:12],
        "changed": report.changes is not None,
        "speed_only": report.speed_only,
        "number": len(report.machines),
        "candidates": [_candidate(name, report) for name in dict.fromkeys(item.candidate for item in report.together)],
        "notes": report_text.notes(report),
        "speed": _speed(report),
        "machines": _machines(report),
        "verdict_count": report.tests,
        "quality_label": report_text.quality_label(report),
    }


def _candidate(name: str, report: FleetReport) -> dict[str, Any]:
    """A candidate with a sentence for each measure; it is marked with the verdict on training of all machines."""
    found = [item for item in report.together if item.candidate == name]
    sentences = [report_text.sentence(item, report).split(": ", 1)[1] for item in found]
    return {
        "name": name,
        "verdict": next((item.on_all for item in found if item.measure == TRAIN and item.on_all), ""),
        "measures": [
            (measure_label(item.measure), text[0].upper() + text[1:])
            for item, text in zip(found, sentences, strict=True)
        ],
    }


def _speed(report: FleetReport) -> dict[str, Any] | None:
    """Speed-ups of all machines on one logarithmic axis, a group for each candidate and measure."""
    measured = [row.speedup for row in report.rows if row.speedup is not None]
    if not measured:
        return None
    ends = [end for found in measured for end in (found.low, found.high)]
    axis = Axis.around([1.0, report.min_speedup, *ends], logarithmic=True)
    return {
        "groups": [_group(found, report, axis) for found in report.together],
        "ticks": [(axis.at(tick), f"{tick:g}×") for tick in axis.ticks()],
        "one": axis.at(1.0),
        "required": axis.at(report.min_speedup),
        "required_text": f"{report.min_speedup:g}×",
    }


def _group(found: TogetherResult, report: FleetReport, axis: Axis) -> dict[str, Any]:
    shown = report_text.names(report)
    rows = [row for row in report.rows if (row.candidate, row.measure) == (found.candidate, found.measure)]
    intervals = [
        interval(
            axis,
            shown[row.machine],
            report_text.speedup_text(row),
            row.speedup,
            row.verdict in ("adopt", "faster"),
        )
        for row in rows
        if row.speedup is not None
    ]
    return {"candidate": found.candidate, "measure": measure_label(found.measure), "intervals": intervals}


def _machines(report: FleetReport) -> list[dict[str, Any]]:
    """Each machine with its rows, and with what distinguishes it from the others."""
    unlike = report_text.unlike(report)
    return [
        {
            "device": machine.device,
            "digest": machine.digest,
            "host": machine.host,
            "rows": [_row(row, report) for row in report.rows if row.machine == machine.digest],
            "unlike": unlike[machine.digest],
        }
        for machine in report.machines
    ]


def _row(row: RowResult, report: FleetReport) -> dict[str, Any]:
    quality = [report_text.quality_text(row)] if report_text.quality_label(report) else []
    p_values = () if report.speed_only else (report_text.p_fleet_text(row),)
    verdict = verdict_text(row.verdict, speed_only=report.speed_only)
    return {
        "candidate": row.candidate,
        "measure": measure_label(row.measure),
        "cells": (report_text.speedup_text(row), *quality, *p_values),
        "verdict": row.verdict,
        "word": verdict,
    }
