"""`python -m stages.fleet report`: which precision on which machine, from `data/fleet/`. Needs no Ray."""

from __future__ import annotations

from stages import files
from stages.fleet.combination import REPORT, FleetReport, combine
from stages.fleet.machines import read_machines
from stages.fleet.report_html import render_html
from stages.fleet.report_text import render_markdown, render_terminal
from stages.terminal import wide_console


def report() -> None:
    """Writes `data/fleet/report.json`, `.md` and `.html`, and prints the table.

    Raises:
        HalfstepError: there is no machine, a file cannot be used, or the machines were not measured alike.
    """
    found = combine(read_machines())
    write_report(found)
    wide_console().print(render_terminal(found))
    print(f"{REPORT.with_suffix('.html')} has the charts")


def write_report(found: FleetReport) -> None:
    """Writes the three files."""
    found.write(REPORT)
    files.write_text(REPORT.with_suffix(".md"), render_markdown(found))
    files.write_text(REPORT.with_suffix(".html"), render_html(found))
