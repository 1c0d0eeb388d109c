"""`data/serve/`: the trained weights in the formats in which they can be served, with their times and predictions."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, ClassVar

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
from halfstep.system.records import model_validator
from halfstep.words.formats import FORMATS, KERAS

SERVING = files.SERVE / "serving.json"
_CALLS = TABLES["calls"][0]


class TimedBatch(Record):
    """Single calls at one batch size, in a process that does nothing else.

    Attributes:
        calls: number of calls after those that warmed up.
        first_call_ms: of the process at this batch size.
        p10_ms, p50_ms, p99_ms: percentiles of the other calls.
    """

    batch_size: int
    calls: int
    first_call_ms: float
    p10_ms: float
    p50_ms: float
    p99_ms: float

    @property
    def examples_per_s(self) -> float:
        """Throughput, by the median call."""
        return self.batch_size * 1e3 / self.p50_ms


class Alone(Record):
    """What `halfstep serve-bench` finds of a file, in a process of its own.

    Attributes:
        threads: of the runtime; None: its default.
        precision: in which it computes.
        load_ms: to import the runtime and to load the file.
        memory_mib: peak of the process's resident memory until the first call has ended.
        batches: by batch size.
    """

    threads: int | None = None
    precision: str
    load_ms: float
    memory_mib: float
    batches: tuple[TimedBatch, ...]


class Tensor(Record):
    """An input or output of an exported model; the first dimension is that of the examples."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class ExportedFile(Record):
    """The weights of one variant in one format.

    Attributes:
        file: below `data/serve`; None where they could not be exported or predicted with, for which `refusal` has the
            reason.
        sha256: of the file; of a folder that of the names and contents of its files.
        kib: size in KiB.
        export_s: seconds that the export took.
        difference: largest absolute difference of a prediction from that of Keras in float32, on the test data.
        agreeing: number of test examples, of `tested`, with the same most likely class; None where outputs are no
            classes.
        note: what was done so that the format takes the model, or what its types stand for.
    """

    variant: str
    format: str
    file: str | None = None
    sha256: str | None = None
    kib: float | None = None
    export_s: float | None = None
    difference: float | None = None
    agreeing: int | None = None
    tested: int | None = None
    note: str | None = None
    refusal: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _without_former_fields(cls, content: Any) -> Any:
        """Earlier releases said what a format refused in 16 bits, and which graph was timed."""
        return {key: value for key, value in content.items() if key not in ("refused_in", "own_refusal", "timed_as")}

    @property
    def label(self) -> str:
        """As people say it."""
        return FORMATS[self.format].label


def in_float32(entries: Any) -> Any:
    """Those of the entries of a file that are in float32; before 0.4 there were models in 16 bits, too."""
    if not isinstance(entries, list):
        return entries
    return [entry for entry in entries if not (isinstance(entry, dict) and "policy" in entry)]


class Export(ExportedFile):
    """That of one training, with the seed; only that of the first seed keeps its file."""

    seed: int


def refusal_of(exports: Sequence[Export]) -> str | None:
    """Why a format cannot be served, of its exports of all seeds; None where all of them work."""
    return next((item.refusal for item in exports if item.refusal is not None), None)


class ServedArm(Record):
    """What was timed: a file with a number of threads.

    Attributes:
        threads: None: the default of the runtime.
        alone: times in a process of its own, which nothing is judged by.
    """

    format: str
    threads: int | None = None
    alone: Alone | None = None

    @property
    def name(self) -> str:
        """Of its times, such as `onnx` or `onnx.1-thread`."""
        return f"{self.format}{'' if self.threads is None else f'.{self.threads}-thread'}"

    @property
    def label(self) -> str:
        """As people say it, such as `ONNX Runtime, 1 thread`."""
        threads = "" if self.threads is None else f", {self.threads} thread{'s' if self.threads > 1 else ''}"
        return f"{FORMATS[self.format].label}{threads}"


class Served(Document):
    """`serving.json`: what was exported, and what was timed.

    Attributes:
        formats: that `serve.formats` asks for, without Keras.
        batch_sizes: at which they were timed; the first one decides.
        weights: the variant whose weights were exported.
        arms: what was timed beside Keras.
        exports: by format and seed.
        inputs, outputs: of the model.
        why_none: why nothing was exported, where formats are asked for.
    """

    VERSION: ClassVar[int] = 2

    formats: tuple[str, ...] = ()
    batch_sizes: tuple[int, ...] = ()
    weights: str | None = None
    arms: tuple[ServedArm, ...] = ()
    exports: tuple[Export, ...] = ()
    inputs: tuple[Tensor, ...] = ()
    outputs: tuple[Tensor, ...] = ()
    why_none: str | None = None

    @property
    def by_format(self) -> dict[str, list[Export]]:
        """The exports of all seeds."""
        exports_by_format: dict[str, list[Export]] = {}
        for item in self.exports:
            exports_by_format.setdefault(item.format, []).append(item)
        return exports_by_format

    @property
    def rows(self) -> list[tuple[list[Export], ServedArm | None]]:
        """The exports of each format with each of the arms that it was timed in; with None where it was not."""
        return [
            (exports, arm)
            for name, exports in self.by_format.items()
            for arm in tuple(item for item in self.arms if item.format == name) or (None,)
        ]

    @property
    def timed(self) -> tuple[str, ...]:
        """The arms with times, Keras first."""
        return (KERAS, *(arm.name for arm in self.arms)) if self.arms else ()


def outputs_file(seed: int, format_name: str) -> Path:
    """What an export predicts on the test data, below `data/serve`: what `train` stores of a test."""
    return Path("outputs") / f"{format_name}-{seed}.npy"


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


def read_served_scores(seed: int, format_name: str, task: TaskInfo, labels: NDArray[np.int64] | None) -> Scores:
    """The score of each test example in a format, as those of a training.

    Args:
        seed: of the training.
        format_name: of the export.
        task: what was trained.
        labels: true classes of images, int64 `(test images,)`; None for other tasks.

    Raises:
        DataError, CorruptFileError: as of `read_array`.
        ComparisonError: the predictions are of another test set.
    """
    path = files.SERVE / outputs_file(seed, format_name)
    if labels is None:
        return read_scores(path, task)
    probabilities = read_array(path, dimensions=2, may_overflow=True)
    check_test_examples(path, len(probabilities), task)
    return correct(probabilities, labels)
