"""Measurements as files: every raw time, the numbers, and the trace at a fixed name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import pandas as pd

from stages import files
from stages.errors import ProfileError
from stages.profile.records import ArmRecord, Call, InputRound, Round, Step


def write_results(record: ArmRecord, summary: dict[str, Any], trace: Path | None, name: str) -> str:
    """Writes an arm's folder, and returns the sha256 of its manifest.

    Args:
        record: the raw times.
        summary: the contents of `summary.json`.
        trace: the trace's file; None for the control.
        name: the variant's name, or that of the control.
    """
    directory = files.profile_dir(name)
    _write_table(directory / "rounds.csv", Round, record.rounds)
    _write_table(directory / "input_rounds.csv", InputRound, record.input_rounds)
    _write_table(directory / "timings.csv", Step, record.steps)
    _write_table(directory / "inference.csv", Call, record.calls)
    files.write_json(directory / "summary.json", summary)
    if trace is not None:
        with files.atomic_path(files.trace_file(name)) as beside:
            beside.write_bytes(trace.read_bytes())
    return files.write_manifest(directory)


def trace_in(directory: Path) -> Path:
    """The one trace that the profiler wrote below a folder, under a name of its own choice.

    Raises:
        ProfileError: it wrote none, or several.
    """
    found = list(directory.rglob("*.xplane.pb"))
    if len(found) != 1:
        raise ProfileError(f"the profiler wrote {len(found)} traces where it should write one; run `dvc repro` again")
    return found[0]


def _write_table(path: Path, kind: type, rows: Sequence[Any]) -> None:
    columns = [field.name for field in fields(kind)]
    table = pd.DataFrame([asdict(row) for row in rows], columns=columns)
    files.write_text(path, table.to_csv(index=False, float_format="%.6f"))
