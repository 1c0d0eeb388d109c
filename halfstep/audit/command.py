"""`python -m halfstep audit`: the layers of the model under each variant, and what may cost time or precision."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from halfstep import params
from halfstep.audit.variants import audits_of
from halfstep.cli import cli_entry
from halfstep.compare.report.layers import COLUMNS, finding_texts, layer_rows, total_text
from halfstep.errors import AuditError
from halfstep.results.audit import ModelAudit
from halfstep.terminal import wide_console


@cli_entry
def main() -> None:
    """Entry point.

    Raises:
        AuditError: something must be mended; it is printed like the rest.
    """
    parser = argparse.ArgumentParser(prog="halfstep audit", description=__doc__)
    parser.add_argument("--json", action="store_true", help="prints everything as JSON")
    arguments = parser.parse_args()
    audits = audits_of(params.load())
    if arguments.json:
        print(
            json.dumps({"variants": {name: audit.model_dump(mode="json") for name, audit in audits.items()}}, indent=2)
        )
    else:
        _print(audits)
    if wrong := [f"{name}: {path} {item.text}" for name, audit in audits.items() for path, item in audit.errors]:
        raise AuditError("; ".join(wrong))


def _print(audits: Mapping[str, ModelAudit]) -> None:
    console = wide_console()
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for number, head in enumerate((*COLUMNS, *audits)):
        is_number = COLUMNS.index("parameters") <= number < len(COLUMNS)
        table.add_column(Text(head), justify="right" if is_number else "left", overflow="fold")
    for row in layer_rows(audits):
        table.add_row(*map(Text, row))
    console.print(table)
    for name, audit in audits.items():
        console.print(Text(f"{name}: {total_text(audit)}"))
        for text in finding_texts(audit):
            console.print(Text(f"  {text}"))
