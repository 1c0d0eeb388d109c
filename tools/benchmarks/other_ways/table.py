"""Renders the page of the docs from the recordings and the answers; no number is written by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from statistics import median

from tools.benchmarks.other_ways import end_to_end, ways
from tools.benchmarks.other_ways.drawing import BAR, HALFSTEP, PYPERF, TRUTHS, Row
from tools.benchmarks.other_ways.end_to_end import DELAY, Line
from tools.benchmarks.other_ways.recordings import FIRST_EPOCHS, LOADS, Recording

DRAWN = "drawn.jsonl"
TEXT = Path(__file__).with_name("page.md")
RECORDINGS = "tools/benchmarks/other_ways/recordings"  # in the repository
NOT_RUN = "not run"
CASES = tuple(product(LOADS, TRUTHS))
ANSWERS: tuple[ways.Answer, ...] = ("yes", "no", "undecided")


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
        folder=RECORDINGS,
        summary=summary(rows, lines),
        significant=significant(rows),
        recordings="\n".join(_about(recording) for recording in found),
        drawn="\n\n".join(
            f"### {load.capitalize()}\n\n{details(of_load)}"
            for load in LOADS
            if (of_load := [row for row in rows if row.load == load])
        ),
        delay=delays([line for line in lines if line.way == DELAY]),
        end_to_end=whole_runs(lines) if lines else NOT_RUN,
    )


def summary(rows: Sequence[Row], lines: Sequence[Line]) -> str:
    """How long each way takes and how often its answer is wrong, by load and true speed-up."""
    head = ["way", "time", "whole runs", *(f"{load}, {truth:.2f}" for load, truth in CASES)]
    return _table(head, [_summary_of(way, rows, lines) for way in _ways(rows)])


def _summary_of(way: str, rows: Sequence[Row], lines: Sequence[Line]) -> list[str]:
    by_case = {(row.load, row.truth): row for row in rows if row.way == way}
    whole = [line for line in lines if line.way == way]
    seconds = [line.seconds for line in whole] or [row.seconds for row in by_case.values()]
    low, high = round(min(seconds)), round(max(seconds))
    time = f"{low} to {high} s" if low < high else f"{low} s"
    shares = [_share_of(by_case[case]) if case in by_case else NOT_RUN for case in CASES]
    return [way, time if whole else f"{time}, by the recording", _wrong_of(whole), *shares]


def _wrong_of(lines: Sequence[Line]) -> str:
    """How many whole runs gave a wrong answer, and how many none."""
    if not lines:
        return NOT_RUN
    wrong = sum(ways.is_wrong(line.answer, line.truth) for line in lines)
    undecided = sum(line.answer == "undecided" for line in lines)
    return f"{wrong} of {len(lines)}" + (f" ({undecided} undecided)" if undecided else "")


def _share_of(row: Row) -> str:
    undecided = f" ({_percent(row.undecided)} undecided)" if row.undecided else ""
    return f"{_percent(row.wrong)}{undecided}"


def significant(rows: Sequence[Row]) -> str:
    """How often pyperf says that equal programs differ, by load."""
    found = [f"{_percent(1 - row.undecided)} ({row.load})" for row in rows if row.way == PYPERF and row.truth == 1]
    return " and ".join(found) or NOT_RUN


def delays(lines: Sequence[Line]) -> str:
    """What the planted delay amounts to, measured in turns in one process; nothing where that was not run."""
    found = []
    for load, truth in CASES:
        ratios = [line.ratio for line in lines if (line.load, line.truth) == (load, truth)]
        if ratios:
            found.append(f"{truth:.2f} is {min(ratios):.3f} to {max(ratios):.3f} ({load})")
    return f"Measured in turns in one process, {', '.join(found)}." if found else ""


def details(rows: Sequence[Row]) -> str:
    """All shares and the spread of the estimates."""
    head = ["true speed-up", "way", *ANSWERS, "wrong", "estimate", "error", "different draws"]
    cells = [
        [
            f"{row.truth:.2f}",
            row.way,
            *(_percent(getattr(row, answer)) for answer in (*ANSWERS, "wrong")),
            f"{row.ratio:.3f} ({row.low:.3f} to {row.high:.3f})",
            _percent(row.error),
            "many" if row.different is None else str(row.different),
        ]
        for row in rows
    ]
    return _table(head, cells)


def whole_runs(lines: Sequence[Line]) -> str:
    """The answers of whole runs."""
    cells = []
    for (load, truth), way in product(CASES, _ways(lines)):
        of_way = [line for line in lines if (line.load, line.truth, line.way) == (load, truth, way)]
        if of_way:
            cells.append([load, f"{truth:.2f}", way, *_cells_of(of_way)])
    return _table(["load", "true speed-up", "way", *ANSWERS, "estimates", "time, median"], cells)


def _cells_of(lines: Sequence[Line]) -> list[str]:
    given, ratios = [line.answer for line in lines], [line.ratio for line in lines]
    counts = [str(given.count(answer)) for answer in ANSWERS]
    hits = [low <= line.truth <= high for line in lines if line.interval for low, high in [line.interval]]
    intervals = f"; {sum(hits)} of {len(hits)} intervals contain the truth" if hits else ""
    estimates = f"{min(ratios):.3f} to {max(ratios):.3f}{intervals}"
    return [*counts, estimates, f"{median(line.seconds for line in lines):.0f} s"]


def _about(recording: Recording) -> str:
    turns = recording.repeats[0].turn_us.shape[1] if recording.repeats else 0
    return (
        f"- {recording.load}: {len(recording.fits)} processes that trained alone, {len(recording.repeats)} repeats of "
        f"{turns} rounds; {recording.about}."
    )


def _ways(rows: Sequence[Row] | Sequence[Line]) -> list[str]:
    """The ways for which there is something, in the order of the page."""
    known = {row.way for row in rows}
    stopwatches = sorted(known - {BAR, PYPERF, HALFSTEP, DELAY}, key=lambda way: (len(way), way))
    return [way for way in (*stopwatches, BAR, PYPERF, HALFSTEP) if way in known]


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _table(head: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
