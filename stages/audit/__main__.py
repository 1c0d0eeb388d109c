"""`python -m stages.audit`: the layers of the model under each variant, and what may cost time or precision."""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Mapping

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from stages import params
from stages.audit.variants import audits_of
from stages.cli import cli_entry
from stages.errors import AuditError
from stages.results.audit import LayerAudit, ModelAudit

_SHOWN = 5  # layers of a finding


@cli_entry
def main() -> None:
    """Entry point.

    Raises:
        AuditError: something must be mended; it is printed like the rest.
    """
    parser = argparse.ArgumentParser(prog="python -m stages.audit", description=__doc__)
    parser.add_argument("--json", action="store_true", help="prints everything as JSON")
    arguments = parser.parse_args()
    found = audits_of(params.load())
    if arguments.json:
        print(json.dumps({"variants": {name: item.model_dump(mode="json") for name, item in found.items()}}, indent=2))
    else:
        console = Console(highlight=False)
        console.print(_table(found))
        for line in _lines(found):
            console.print(Text(line))
    wrong = [f"{name}: {path} {item.text}" for name, audit in found.items() for path, item in audit.errors]
    if wrong:
        raise AuditError("; ".join(wrong))


def _table(found: Mapping[str, ModelAudit]) -> Table:
    """A row for each layer that has weights, work or findings."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("layer", overflow="fold")
    table.add_column("type")
    for head in ("parameters", "MFLOP", "MB"):
        table.add_column(head, justify="right")
    for name in found:
        table.add_column(name)
    by_path: dict[str, dict[str, LayerAudit]] = defaultdict(dict)
    for name, audit in found.items():
        for layer in audit.layers:
            by_path[layer.path][name] = layer
    for path, layers in by_path.items():
        first = next(iter(layers.values()))
        if any(layer.parameters or layer.flops or layer.findings for layer in layers.values()):
            types = (layers[name].compute_dtype if name in layers else "" for name in found)
            table.add_row(Text(path), first.type, f"{first.parameters:,}", *_work(first.flops, first.bytes), *types)
    return table


def _work(flops: int | None, moved: int | None) -> tuple[str, str]:
    return tuple("" if value is None else f"{value / 1e6:,.3g}" for value in (flops, moved))  # type: ignore[return-value]


def _lines(found: Mapping[str, ModelAudit]) -> list[str]:
    """The sums of each variant, and its findings by kind."""
    lines = []
    for name, audit in found.items():
        totals = audit.totals
        work = "work not known" if totals.flops is None else f"{totals.flops / 1e9:.3g} GFLOP"
        casts = "" if totals.casts is None else f", {totals.casts} casts between float32 and 16 bits"
        lines.append(f"{name}: {totals.parameters:,} parameters, {work} a forward pass of one example{casts}")
        by_text: dict[str, list[str]] = defaultdict(list)
        for layer in audit.layers:
            for item in layer.findings:
                by_text[f"{'error: ' if item.is_error else ''}{item.text}"].append(layer.path)
        for text, paths in by_text.items():
            more = f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
            lines.append(f"  {', '.join(paths[:_SHOWN])}{more}: {text}")
    return lines


if __name__ == "__main__":
    raise SystemExit(main())
