"""Reports on the prepared images: `info.json`, tables and a grid of samples."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from halfstep.errors import one_line
from halfstep.escaping import table_text
from halfstep.files import atomic_path, write_text
from halfstep.prepare.images.batches import Rejection
from halfstep.prepare.images.samples import choose_samples, draw_grid
from halfstep.prepare.images.splitting import SPLITS
from halfstep.results.prepared import PreparedInfo
from halfstep.results.task import TASK_INFO, images_task

CONFLICTS = "class_conflicts.csv"


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
    """Writes `task.json`, `info.json`, the tables and `sample_grid.png` to the folder of the images.

    If the grid cannot be drawn, one line on standard error says so, and the rest is complete.
    """
    images_task(info.images["test"]).write(directory / TASK_INFO.name)
    info.write(directory / "info.json")
    write_text(directory / "rejected.csv", rejections_csv(rejected))
    write_text(directory / CONFLICTS, _csv(("image", "path", "class"), map(astuple, conflicts)))
    counts = ((name, *(info.class_counts[split][name] for split in SPLITS)) for name in info.classes)
    write_text(directory / "class_counts.csv", _csv(("class", *SPLITS), counts))
    _write_sample_grid(info, directory / "sample_grid.png")


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


def _csv(header: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([table_text(cell) if isinstance(cell, str) else cell for cell in row] for row in rows)
    return text.getvalue()


def _write_sample_grid(info: PreparedInfo, path: Path) -> None:
    try:
        grid = _sample_grid(info, path.parent)
    except Exception as error:  # of Pillow or its fonts: nothing else needs the picture
        reason = one_line(f"{type(error).__name__}: {error}")
        print(f"{path} cannot be drawn ({reason}); everything else in {path.parent} is complete", file=sys.stderr)
        return
    with atomic_path(path) as temporary_path:
        grid.save(temporary_path)


def _sample_grid(info: PreparedInfo, directory: Path) -> Image.Image:
    images = np.load(directory / "train_images.npy", mmap_mode="r", allow_pickle=False)
    labels = np.load(directory / "train_labels.npy", allow_pickle=False)
    samples = choose_samples(labels, len(info.classes))
    rows = []
    for label, indices in samples.items():
        name = info.classes[label]
        note = " / ".join(f"{info.class_counts[split][name]:,}" for split in SPLITS)
        rows.append((name, note, images[indices]))
    height_px, width_px, _ = info.image_shape
    totals = " / ".join(f"{info.images[split]:,}" for split in SPLITS)
    shown = "" if len(rows) == len(info.classes) else f", {len(rows)} shown"
    title = f"{info.source}, {height_px} x {width_px} pixels, {len(info.classes)} classes{shown}"
    return draw_grid(title, f"images for training / validation / test: {totals}", rows)
