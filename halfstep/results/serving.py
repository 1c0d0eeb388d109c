"""`data/serve/`: the trained weights in the formats in which they can be served, with their times and predictions."""

from __future__ import annotations

import shutil
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from halfstep.results.artifact import Document, Record, empty_table, read_array, read_table, write_table
from halfstep.results.profile import (
    SUMMARY,
    TABLES,
    THROTTLED,
    InferenceCall,
    InputRound,
    Profile,
    ProfileSummary,
    Round,
    Step,
)
from halfstep.results.task import TaskInfo
from halfstep.results.training import Scores, check_test_examples, correct, read_scores
from halfstep.system import files
from halfstep.system.records import BeforeValidator, Field, model_validator
from halfstep.words.formats import FORMATS

SERVING = files.SERVE / "serving.json"
_CALLS = TABLES["calls"][0]


class ExportedFile(Record):
    """The weights of one variant in one format.

    Attributes:
        timed_as: the arm with its times, where that is not the one with the name of its format: the arm of another
            graph than the baseline's.
        file: below `data/serve`; None where they could not be exported or predicted with, for which `refusal` has the
            reason.
        sha256: of the file; of a folder that of the names and contents of its files.
        kib: size in KiB.
        export_s: seconds that the export took.
        difference: largest absolute difference of a prediction from that of Keras in float32, on the test data.
    """

    variant: str
    format: str
    timed_as: str | None = None
    file: str | None = None
    sha256: str | None = None
    kib: float | None = None
    export_s: float | None = None
    difference: float | None = None
    refusal: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _without_16_bits(cls, content: Any) -> Any:
        """Results of before 0.4 say what a format refused of the same model in 16 bits."""
        return {name: value for name, value in content.items() if name not in ("refused_in", "own_refusal")}

    @property
    def label(self) -> str:
        """As people say it."""
        return FORMATS[self.format].label

    @property
    def arm(self) -> str:
        """The arm with its times."""
        return self.timed_as or self.format


def in_float32(entries: Any) -> Any:
    """Those of the entries of a file that are in float32; before 0.4 there were models in 16 bits, too."""
    if not isinstance(entries, list):
        return entries
    return [entry for entry in entries if not (isinstance(entry, dict) and "policy" in entry)]


class Export(ExportedFile):
    """That of one training, with the seed."""

    seed: int

    @property
    def path(self) -> Path:
        """Where its file or folder is, below `data/serve`."""
        return Path("models") / f"{self.variant}-{self.seed}" / f"{self.format}{FORMATS[self.format].suffix}"


class Served(Document):
    """`serving.json`: what was exported, and what was timed.

    Attributes:
        formats: that `serve.formats` asks for, without Keras.
        batch_sizes: at which they were timed; the first one decides.
        weights: the baseline, whose weights were timed where a variant has the same graph: a latency does not depend
            on their values.
        threads: of each runtime.
        timed: arms with times: Keras, formats by their names, and graphs of which a variant has one of its own.
        exports: by training and format.
        why_none: why nothing was exported, where formats are asked for.
    """

    VERSION: ClassVar[int] = 1

    formats: tuple[str, ...] = ()
    batch_sizes: tuple[int, ...] = ()
    weights: str | None = None
    threads: int | None = None
    timed: tuple[str, ...] = ()
    exports: Annotated[tuple[Export, ...], BeforeValidator(in_float32)] = Field(default=())
    why_none: str | None = None

    @property
    def by_row(self) -> dict[tuple[str, str], list[Export]]:
        """The exports of all seeds, by variant and format."""
        exports_by_row: dict[tuple[str, str], list[Export]] = {}
        for item in self.exports:
            exports_by_row.setdefault((item.variant, item.format), []).append(item)
        return exports_by_row


def outputs_file(variant: str, seed: int, format_name: str) -> Path:
    """What an export predicts on the test data, below `data/serve`: what `train` stores of a test."""
    return Path("outputs") / f"{variant}-{seed}-{format_name}.npy"


def timing_dir(name: str) -> Path:
    """The folder of the times of an arm."""
    return files.SERVE / "timing" / name


def write_times(name: str, summary: ProfileSummary, calls: list[InferenceCall]) -> None:
    """Writes the times of an arm, as those of a variant in `data/profile`."""
    write_table(timing_dir(name) / _CALLS, InferenceCall, calls)
    summary.write(timing_dir(name) / SUMMARY)


def read_times(name: str) -> Profile:
    """Reads the times of an arm, without rounds of training; the manifest must have been verified.

    Raises:
        DataError: a file is missing.
        CorruptFileError: a file is not what was written.
    """
    columns = [column.name for column in fields(InferenceCall) if column.name != THROTTLED]
    summary = ProfileSummary.read(timing_dir(name) / SUMMARY)
    rounds, input_rounds, steps = (
        empty_table(column.name for column in fields(row)) for row in (Round, InputRound, Step)
    )
    return Profile(summary, rounds, input_rounds, steps, read_table(timing_dir(name) / _CALLS, columns))


def nothing_served(formats: tuple[str, ...] = (), why: str | None = None) -> None:
    """Writes that nothing was exported, and why, where formats are asked for."""
    shutil.rmtree(files.SERVE, ignore_errors=True)
    Served(formats=formats, why_none=why).write(SERVING)
    files.write_manifest(files.SERVE)


def read_served() -> Served | None:
    """What was served, checked against the manifest; None before 0.5, when there was no such stage.

    Raises:
        CorruptFileError: a file is not what was written.
    """
    if not SERVING.is_file():
        return None
    files.verify_manifest(files.SERVE)
    return Served.read(SERVING)


def read_served_scores(
    variant: str, seed: int, format_name: str, task: TaskInfo, labels: NDArray[np.int64] | None
) -> Scores:
    """The score of each test example in a format, as those of a training.

    Args:
        variant, seed: of the training.
        format_name: of the export.
        task: what was trained.
        labels: true classes of images, int64 `(test images,)`; None for other tasks.

    Raises:
        DataError, CorruptFileError: as of `read_array`.
        ComparisonError: the predictions are of another test set.
    """
    path = files.SERVE / outputs_file(variant, seed, format_name)
    if labels is None:
        return read_scores(path, task)
    probabilities = read_array(path, dimensions=2, may_overflow=True)
    check_test_examples(path, len(probabilities), task)
    return correct(probabilities, labels)
