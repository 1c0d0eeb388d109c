"""xprof's tables: `{"cols": [{"id": ...}], "rows": [{"c": [{"v": ...}]}], "p": {...}}`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Table:
    """Rows by the columns' own names, and the table's properties."""

    columns: tuple[str, ...] = ()
    rows: tuple[Mapping[str, Any], ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, table: Mapping[str, Any]) -> Table:
        """Reads a table as xprof writes it; cells without a value become None."""
        columns = tuple(column["id"] for column in table.get("cols") or ())
        rows = tuple(
            dict(zip(columns, ((cell or {}).get("v") for cell in row["c"]), strict=False))
            for row in table.get("rows") or ()
        )
        return cls(columns, rows, table.get("p") or {})


def first_with(tables: tuple[Table, ...], column: str) -> Table:
    """The first table that has `column`; an empty one where none has. The order of tables differs by device."""
    return next((table for table in tables if column in table.columns), Table())


def property_of(tables: tuple[Table, ...], name: str) -> str:
    """The first value of the property `name` in any of the tables; empty where none has it."""
    return next((table.properties[name] for table in tables if name in table.properties), "")
