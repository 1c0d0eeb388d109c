"""Reports on the prepared images: `info.json` and tables."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

from halfstep.prepare.images.source import Rejection
from halfstep.prepare.images.splitting import SPLITS
from halfstep.results.prepared import PreparedInfo
from halfstep.results.task import TASK_INFO, images_task
from halfstep.system.files import write_text
from halfstep.words.escaping import table_text

CONFLICTS = "class_conflicts.csv"
_FEWEST_OF_CLASS = 5


@dataclass(frozen=True)
class Conflict:
    """An image that occurs in several classes.

    Attributes:
        image: a number that all copies of the image share.
        path: name of this copy within the source.
        class_name: the class of this copy.
    """

    image: int
    path: str
    class_name: str


def write_reports(
    info: PreparedInfo, rejected: Sequence[Rejection], conflicts: Sequence[Conflict], directory: Path
) -> None:
    """Writes `task.json`, `info.json` and the tables to the folder of the images."""
    images_task(info.images["test"]).write(directory / TASK_INFO.name)
    info.write(directory / "info.json")
    write_text(directory / "rejected.csv", rejections_csv(rejected))
    write_text(directory / CONFLICTS, _csv(("image", "path", "class"), map(astuple, conflicts)))
    counts = ((name, *(info.class_counts[split][name] for split in SPLITS)) for name in info.classes)
    write_text(directory / "class_counts.csv", _csv(("class", *SPLITS), counts))


def rejections_csv(rejected: Iterable[Rejection]) -> str:
    """CSV with the columns `path` and `reason`, as text that no spreadsheet computes."""
    return _csv(("path", "reason"), ((rejection.path, rejection.reason) for rejection in rejected))


def summary_line(info: PreparedInfo) -> str:
    """One line for the terminal."""
    numbers = ", ".join(f"{count} {split}" for split, count in info.images.items())
    return f"{info.source}: {numbers} images of {len(info.classes)} classes, {info.rejected} rejected"


def conflicts_line(directory: Path) -> str | None:
    """One line for the terminal if images occur in several classes."""
    with (directory / CONFLICTS).open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    if not rows:
        return None
    other = next(row for row in rows if row["image"] == rows[0]["image"] and row["class"] != rows[0]["class"])
    return (
        f"{len({row['image'] for row in rows})} image(s) occur in more than one class, for example "
        f"{rows[0]['path']} in {rows[0]['class']!r} and {other['path']} in {other['class']!r}; they are used as they "
        f"are: check their classes ({directory / CONFLICTS} lists all of them)"
    )


def small_classes_line(info: PreparedInfo) -> str | None:
    """One line for the terminal if a class has too few test images to say anything of its recall."""
    counts = info.class_counts["test"]
    name, count = min(counts.items(), key=lambda item: item[1])
    if count >= _FEWEST_OF_CLASS:
        return None
    others = sum(other < _FEWEST_OF_CLASS for other in counts.values()) - 1
    more = f", and {others} more classes have few" if others else ""
    return f"the class {name!r} has {count} test images{more}: too few to say what a variant does to it"


def _csv(header: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([table_text(cell) if isinstance(cell, str) else cell for cell in row] for row in rows)
    return text.getvalue()
