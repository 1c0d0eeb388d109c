"""The layers of the model under each variant: what they compute in, their work, and what may cost time or precision."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from halfstep.results.audit import LayerAudit, ModelAudit

COLUMNS = ("layer", "type", "parameters", "MFLOP", "MB")
SHOWN = 5  # layers of a finding
_GIGA_FROM = 1e8  # FLOP


def layer_rows(audits: Mapping[str, ModelAudit]) -> list[tuple[str, ...]]:
    """A row for each layer that has weights, work or findings: `COLUMNS`, and its type under each variant."""
    by_path: dict[str, dict[str, LayerAudit]] = defaultdict(dict)
    for name, audit in audits.items():
        for layer in audit.layers:
            by_path[layer.path][name] = layer
    rows = []
    for path, layers in by_path.items():
        first = next(iter(layers.values()))
        if any(layer.parameters or layer.flops or layer.findings for layer in layers.values()):
            types = (layers[name].compute_dtype if name in layers else "" for name in audits)
            rows.append((path, first.type, f"{first.parameters:,}", _mega(first.flops), _mega(first.bytes), *types))
    return rows


def _mega(value: int | None) -> str:
    return "" if value is None else f"{value / 1e6:,.3g}"


def total_text(audit: ModelAudit) -> str:
    """The sums of a variant, such as `25,636,712 parameters, 7.72 GFLOP a forward pass of one example, 109 casts`."""
    totals = audit.totals
    work = "work not known" if totals.flops is None else f"{_flop_text(totals.flops)} in a forward pass of one example"
    casts = f", {totals.casts} casts between float32 and 16 bits" if totals.casts else ""
    return f"{totals.parameters:,} parameters, {work}{casts}"


def _flop_text(flops: int) -> str:
    return f"{flops / 1e9:.3g} GFLOP" if flops >= _GIGA_FROM else f"{flops / 1e6:.3g} MFLOP"


def finding_texts(audit: ModelAudit) -> list[str]:
    """What was found in a variant, errors first, with the layers that it was found in."""
    found: dict[tuple[bool, str], list[str]] = defaultdict(list)
    for layer in audit.layers:
        for item in layer.findings:
            found[not item.is_error, item.text].append(layer.path)
    return [_text(text, paths, is_error=not harmless) for (harmless, text), paths in sorted(found.items())]


def _text(text: str, paths: list[str], *, is_error: bool) -> str:
    more = f" and {len(paths) - SHOWN} more" if len(paths) > SHOWN else ""
    return f"{'error: ' if is_error else ''}{', '.join(paths[:SHOWN])}{more}: {text}"
