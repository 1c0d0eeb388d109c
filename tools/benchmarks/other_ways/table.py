"""Renders the page of the docs from the recordings and the answers; no number is written by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median

from tools.benchmarks.other_ways import end_to_end
from tools.benchmarks.other_ways.drawing import BAR, HALFSTEP, PYPERF, TRUTHS, Row
from tools.benchmarks.other_ways.end_to_end import Line
from tools.benchmarks.other_ways.recordings import FIRST_EPOCHS, LOADS, Recording

DRAWN = "drawn.jsonl"
TEXT = Path(__file__).with_name("page.md")
ANSWERS = ("yes", "no", "undecided")


def write_rows(folder: Path, rows: Sequence[Row]) -> None:
    """Writes what was drawn."""
    (folder / DRAWN).write_text("".join(json.dumps(asdict(row)) + "\n" for row in rows), encoding="utf-8")


def read_rows(folder: Path) -> list[Row]:
    """Reads what `write_rows` wrote; nothing where nothing was drawn."""
    path = folder / DRAWN
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return [Row(**json.loads(line)) for line in text.splitlines()]


def page(folder: Path) -> str:
    """The page, with the definitions around the tables."""
    rows, lines = read_rows(folder), end_to_end.read(folder)
    found = [recording for load in LOADS if (recording := Recording.read(folder, load)) is not None]
    return TEXT.read_text(encoding="utf-8").format(
        epochs=FIRST_EPOCHS,
        summary=summary(rows),
        recordings="\n".join(_about(recording) for recording in found),
        drawn="\n\n".join(f"**{load}**\n\n{details([row for row in rows if row.load == load])}" for load in LOADS),
        end_to_end=whole_runs(lines),
    )


def summary(rows: Sequence[Row]) -> str:
    """How long each way takes and how often its answer is wrong, by load and true speed-up."""
    head = ["way", "time"] + [f"{load}, {truth:.2f}" for load in LOADS for truth in TRUTHS]
    return _table(head, [_summary_of(way, rows) for way in _ways(rows)])


def _summary_of(way: str, rows: Sequence[Row]) -> list[str]:
    by_case = {(row.load, row.truth): row for row in rows if row.way == way}
    seconds = [row.seconds for row in by_case.values()]
    shares = [_share_of(by_case[load, truth]) if (load, truth) in by_case else "" for load in LOADS for truth in TRUTHS]
    return [way, f"{min(seconds):.0f} to {max(seconds):.0f} s", *shares]


def _share_of(row: Row) -> str:
    undecided = f", undecided {row.undecided:.1%}" if row.undecided else ""
    return f"{row.wrong:.1%}{undecided}"


def details(rows: Sequence[Row]) -> str:
    """All shares and the spread of the estimates."""
    head = ["true speed-up", "way", *ANSWERS, "wrong", "estimate", "error", "different draws"]
    cells = [
        [
            f"{row.truth:.2f}",
            row.way,
            *(f"{getattr(row, answer):.1%}" for answer in (*ANSWERS, "wrong")),
            f"{row.ratio:.3f} ({row.low:.3f} to {row.high:.3f})",
            f"{row.error:.1%}",
            "many" if row.different is None else str(row.different),
        ]
        for row in rows
    ]
    return _table(head, cells)


def whole_runs(lines: Sequence[Line]) -> str:
    """The answers of whole runs."""
    head = ["load", "true speed-up", "way", *ANSWERS, "estimates", "time, median"]
    cells = []
    for load in LOADS:
        for truth in TRUTHS:
            for way in _ways(lines):
                of_way = [line for line in lines if (line.load, line.truth, line.way) == (load, truth, way)]
                if of_way:
                    cells.append([load, f"{truth:.2f}", way, *_cells_of(of_way)])
    return _table(head, cells)


def _cells_of(lines: Sequence[Line]) -> list[str]:
    given, ratios = [line.answer for line in lines], [line.ratio for line in lines]
    counts = [str(given.count(answer)) for answer in ANSWERS]
    return [*counts, f"{min(ratios):.3f} to {max(ratios):.3f}", f"{median(line.seconds for line in lines):.0f} s"]


def _about(recording: Recording) -> str:
    turns = recording.repeats[0].turn_us.shape[1] if recording.repeats else 0
    return (
        f"- {recording.load}: {len(recording.fits)} processes that trained alone, {len(recording.repeats)} repeats of "
        f"{turns} rounds; {recording.about}."
    )


def _ways(rows: Sequence[Row] | Sequence[Line]) -> list[str]:
    """The ways for which there is something, in the order of the page."""
    known = {row.way for row in rows}
    stopwatches = sorted(known - {BAR, PYPERF, HALFSTEP}, key=lambda way: (len(way), way))
    return [way for way in (*stopwatches, BAR, PYPERF, HALFSTEP) if way in known]


def _table(head: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
