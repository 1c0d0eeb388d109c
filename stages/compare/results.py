"""Writes everything that `compare` leaves behind below `data/compare/`."""

from __future__ import annotations

from stages import files
from stages.compare.comparison import Comparison
from stages.compare.contents import as_dvc_metrics, as_json
from stages.compare.plots import write_plots
from stages.compare.report import render_report


def write_results(comparison: Comparison) -> None:
    """Writes comparison.json, metrics.json, plots/*.csv and report.html."""
    files.write_json(files.COMPARE / "comparison.json", as_json(comparison))
    files.write_json(files.COMPARE / "metrics.json", as_dvc_metrics(comparison))
    write_plots(comparison)
    files.write_text(files.COMPARE / "report.html", render_report(comparison))
