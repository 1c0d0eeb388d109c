"""What `data/prepared/` says about itself: for programs, for DVC and MLflow, and for the eye."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from stages.files import atomic_path, write_json, write_text
from stages.prepare.batches import Rejection
from stages.prepare.samples import choose_samples, draw_grid
from stages.prepare.splitting import SPLITS


@dataclass(frozen=True)
class Prepared:
    """What `data/prepared/` holds.

    Attributes:
        synthetic: whether the images are made up, so that an accuracy on them says nothing.
        image_shape: height, width and channels of every image.
        class_counts: number of images by split, then by class, in the order of `classes`.
        rejected: what was left out; also in `rejected.csv`.
    """

    source: str
    synthetic: bool
    classes: tuple[str, ...]
    image_shape: tuple[int, int, int]
    class_counts: dict[str, dict[str, int]]
    rejected: tuple[Rejection, ...]

    @property
    def images(self) -> dict[str, int]:
        """Number of images by split."""
        return {name: sum(counts.values()) for name, counts in self.class_counts.items()}

    @property
    def summary(self) -> str:
        """One line for the terminal."""
        numbers = ", ".join(f"{count} {name}" for name, count in self.images.items())
        return f"{self.source}: {numbers} images of {len(self.classes)} classes, {len(self.rejected)} rejected"


def write_reports(prepared: Prepared, directory: Path) -> None:
    """Writes `info.json`, `rejected.csv`, `class_counts.csv` and `sample_grid.png` beside the packed images."""
    write_json(directory / "info.json", _info(prepared))
    write_text(directory / "rejected.csv", rejections_csv(prepared.rejected))
    counts = ((name, *(prepared.class_counts[side][name] for side in SPLITS)) for name in prepared.classes)
    write_text(directory / "class_counts.csv", _csv(("class", *SPLITS), counts))
    with atomic_path(directory / "sample_grid.png") as beside:
        _sample_grid(prepared, directory).save(beside)


def rejections_csv(rejected: Iterable[Rejection]) -> str:
    """A header, and a line for each: path and reason."""
    return _csv(("path", "reason"), ((rejection.path, rejection.reason) for rejection in rejected))


def _info(prepared: Prepared) -> dict[str, Any]:
    return {
        "source": prepared.source,
        "synthetic": prepared.synthetic,
        "classes": list(prepared.classes),
        "image_shape": list(prepared.image_shape),
        "images": prepared.images,
        "class_counts": prepared.class_counts,
        "rejected": len(prepared.rejected),
    }


def _csv(header: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue()


def _sample_grid(prepared: Prepared, directory: Path) -> Image.Image:
    images = np.load(directory / "train_images.npy", mmap_mode="r", allow_pickle=False)
    labels = np.load(directory / "train_labels.npy", allow_pickle=False)
    samples = choose_samples(labels, len(prepared.classes))
    rows = []
    for label, indices in samples.items():
        name = prepared.classes[label]
        note = " / ".join(f"{prepared.class_counts[side][name]:,}" for side in SPLITS)
        rows.append((name, note, images[indices]))
    height_px, width_px, _ = prepared.image_shape
    totals = " / ".join(f"{prepared.images[side]:,}" for side in SPLITS)
    shown = "" if len(rows) == len(prepared.classes) else f", {len(rows)} shown"
    title = f"{prepared.source}, {height_px} x {width_px} pixels, {len(prepared.classes)} classes{shown}"
    return draw_grid(title, f"images for training / validation / test: {totals}", rows)
