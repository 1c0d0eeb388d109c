"""The report on several machines as text: cells, sentences, Markdown and a table for the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from stages.compare.report.html import flat
from stages.compare.scale import Scale
from stages.compare.text import SPEED_ONLY_NOTE, p_text, ratio_text, verdict_text
from stages.escaping import markdown_text
from stages.fleet.combination import FleetReport, MachineResult, RowResult, TogetherResult
from stages.text import joined, measure_label


def name_of(machine: MachineResult, report: FleetReport) -> str:
    """The device, and the machine's digest where several machines have the same device."""
    same = [other for other in report.machines if other.device == machine.device]
    return machine.device if len(same) == 1 else f"{machine.device} ({machine.digest})"


def names(report: FleetReport) -> dict[str, str]:
    """`name_of` by digest."""
    return {machine.digest: name_of(machine, report) for machine in report.machines}


def quality_label(report: FleetReport) -> str:
    """What `quality_text` shows, such as `accuracy, points`; empty for speed only."""
    found = next((row.quality for row in report.rows if row.quality is not None), None)
    return "" if found is None else f"{found.name}, points" if found.unit == "fraction" else found.name


def quality_text(row: RowResult) -> str:
    """The change of the score with its interval, such as `−0.25 (−1.20 to +0.70)`."""
    if row.quality is None:
        return ""
    return Scale(row.quality.name, row.quality.unit == "fraction", row.quality.margin).change(row.quality)


def speedup_text(row: RowResult) -> str:
    """The speed-up with its interval; empty if nothing was measured."""
    return "" if row.speedup is None else ratio_text(row.speedup)


def p_fleet_text(row: RowResult) -> str:
    """The p-value among all verdicts of all machines; empty for speed only."""
    return "" if row.p_fleet is None else p_text(row.p_fleet)


def sentence(found: TogetherResult, report: FleetReport) -> str:
    """What all machines say about a candidate, in a measure."""
    start = f"{found.candidate}, {measure_label(found.measure)}: "
    if len(report.machines) == 1:
        return f"{start}{next(iter(found.verdicts))} on the one machine that was measured."
    if found.on_all is not None:
        return f"{start}{found.on_all} on all of them, by each machine's own verdict."
    shown = names(report)
    parts = [f"{verdict} on {joined([shown[one] for one in digests])}" for verdict, digests in found.verdicts.items()]
    return f"{start}{'; '.join(parts)}.{_at_least_one(found, report)}"


def _at_least_one(found: TogetherResult, report: FleetReport) -> str:
    """Whether `adopt` holds on at least one machine, where some and not all have that verdict."""
    if "adopt" not in found.verdicts or found.shown_on is None:
        return ""
    corrected = f" Corrected for the {report.tests} verdicts of all machines, adopt is"
    if not found.shown_on:
        return f"{corrected} not shown on any of them."
    where = joined([names(report)[one] for one in found.shown_on])
    return f"{corrected} shown on at least one of them: {where}."


def notes(report: FleetReport) -> list[str]:
    """What the statements mean."""
    if report.speed_only:
        return [
            SPEED_ONLY_NOTE,
            "Verdicts on speed only do not share an error: each is wrong in at most 2.5 % of the measurements, and of "
            "many verdicts one or more is wrong more often. So nothing is said of at least one of the machines.",
        ]
    return [
        "On all of them: each machine's own verdict says so, which needs no further correction, since one verdict that "
        "does not agree is enough to refute it.",
        f"On at least one of them: corrected for all {report.tests} verdicts of all machines by Holm's method.",
    ]


def unlike(report: FleetReport) -> dict[str, list[tuple[str, str]]]:
    """By digest, what distinguishes a machine from the others: names and texts of its description."""
    described = {machine.digest: dict(flat(machine.environment)) for machine in report.machines}
    keys = dict.fromkeys(key for found in described.values() for key in found if key not in ("sha256", "device"))
    differing = [key for key in keys if len({found.get(key) for found in described.values()}) > 1]
    return {digest: [(key, found[key]) for key in differing if key in found] for digest, found in described.items()}


def render_terminal(report: FleetReport) -> RenderableType:
    """A table for each machine, with a row for each candidate and measure; then the sentences and what they mean."""
    tables = [_table(machine, report) for machine in report.machines]
    tables[-1].caption = f"Ratios: time of {report.baseline} / time of the candidate, with a 95 % interval."
    lines = [Text(sentence(found, report)) for found in report.together]
    return Group(*tables, *lines, *(Text(f"Note: {note}") for note in notes(report)))


def _table(machine: MachineResult, report: FleetReport) -> Table:
    title = Text(f"{machine.device}, machine {machine.digest}", style="bold")
    table = Table(title=title, title_justify="left", caption_justify="left")
    for column in _columns(report):
        table.add_column(column, overflow="fold")
    rows = [row for row in report.rows if row.machine == machine.digest]
    for candidate, group in groupby(rows, key=lambda row: row.candidate):
        for number, row in enumerate(group):
            table.add_row(*map(Text, ("" if number else candidate, *_cells(row, report))))
    return table


def _columns(report: FleetReport) -> list[str]:
    quality = [label] if (label := quality_label(report)) else []
    return ["candidate", "measure", "speed-up", *quality, "verdict"]


def _cells(row: RowResult, report: FleetReport) -> list[str]:
    quality = [quality_text(row)] if quality_label(report) else []
    verdict = verdict_text(row.verdict, speed_only=report.speed_only)
    return [measure_label(row.measure), speedup_text(row), *quality, verdict]


def render_markdown(report: FleetReport) -> str:
    """The sentences and the table."""
    changed = "" if report.changes is None else ", with changes to tracked files"
    lines = [f"Compared with {markdown_text(report.baseline)} at commit `{report.commit[:12]}`{changed}.", ""]
    lines += [f"- {markdown_text(sentence(found, report))}" for found in report.together]
    lines += ["", *(f"{markdown_text(note)}  " for note in notes(report)), "", *_markdown_table(report)]
    for digest, found in unlike(report).items():
        if found:
            described = "; ".join(f"{key}: {text}" for key, text in found)
            lines += ["", f"`{digest}` differs from the others: {markdown_text(described)}"]
    return "\n".join(lines) + "\n"


def _markdown_table(report: FleetReport) -> Iterator[str]:
    p_column = [] if report.speed_only else ["p, all machines"]
    *columns, last = _columns(report)
    header = ["device", "machine", *columns, *p_column, last]
    yield f"| {' | '.join(header)} |"
    yield f"| {' | '.join('---' for _ in header)} |"
    devices = {machine.digest: machine.device for machine in report.machines}
    for row in report.rows:
        *before, verdict = _cells(row, report)
        p = [] if report.speed_only else [p_fleet_text(row)]
        cells = [devices[row.machine], row.machine, row.candidate, *before, *p, verdict]
        yield f"| {' | '.join(map(markdown_text, cells))} |"
