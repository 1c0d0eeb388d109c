"""What a search tried, as tables in the terminal."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from stages.compare.text import ratio_text
from stages.results.comparison import Change
from stages.results.search import CandidateTried, Search
from stages.terminal import wide_console


def print_search(found: Search, baseline: str) -> None:
    """Prints the trainings, the timed sets, and what was found."""
    console = wide_console()
    if found.trainings:
        console.print(_trainings(found))
    if found.candidates:
        console.print(_candidates(found, baseline))
    console.print(Text(f"{found.sentence}"))


def _table(title: str, *heads: str) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for head in heads:
        table.add_column(head, overflow="fold")
    return table


def _trainings(found: Search) -> Table:
    table = _table("Trainings", "in float32", "trains", "validation", "seconds")
    for row in found.trainings:
        score = "" if row.val_score is None else f"{row.val_score:.4f}"
        trains = "yes" if row.trains else f"no: {row.why}"
        table.add_row(Text(", ".join(row.float32_layers)), Text(trains), score, f"{row.seconds:.0f}")
    return table


def _candidates(found: Search, baseline: str) -> Table:
    over = (f"over {found.variant}", f"over {baseline}")
    table = _table("Timed in turns", "in float32", "layers", *over, "measurement", "same weights", "trained")
    for row in sorted(found.candidates, key=_rank):
        ratios = ("" if ratio is None else ratio_text(ratio) for ratio in (row.over_variant, row.over_baseline))
        table.add_row(
            Text(row.name),
            f"{len(row.float32_layers)}",
            *ratios,
            f"{row.stage or ''}",
            _change_text(row.val_change),
            Text(_training_text(row)),
        )
    return table


def _rank(row: CandidateTried) -> tuple[int, float]:
    return -row.stage, -(row.over_baseline.ratio if row.over_baseline else 0)


def _change_text(change: Change | None) -> str:
    return "" if change is None else f"{change.delta:+.4f} ({change.low:+.4f} to {change.high:+.4f})"


def _training_text(row: CandidateTried) -> str:
    if row.training is not None and not row.training.trains:
        return f"does not train: {row.training.why}"
    return _change_text(row.trained_val_change)
