"""An MLflow run that is being written. No result is lost if the tracking store fails."""

from __future__ import annotations

import functools
import math
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlflow
from mlflow.entities import Metric, RunTag

from stages.errors import one_line

RESULT_TAG = "result.sha256"
FAILURE_TAG = "failure"  # why a training failed
_BATCH = 900  # metrics in one call; the server's limit is 1,000


@dataclass
class StoreState:
    """Whether a store has failed. The runs of one process share it: each further call would take seconds, too."""

    has_failed: bool = False


class ActiveRun:
    """A run that has started and not ended.

    If the store fails, one line on standard error reports it, and nothing more is logged to the runs that share
    `state`. `compare` logs the rest from the files. Until then, or until its stage runs again, the run stays RUNNING.
    """

    def __init__(self, client: mlflow.MlflowClient, run_id: str, state: StoreState | None = None) -> None:
        self.client = client
        self.run_id = run_id
        self.status = "FINISHED"
        self._state = state or StoreState()

    @property
    def is_incomplete(self) -> bool:
        """Whether the store has failed, so that something may be missing in the run."""
        return self._state.has_failed

    def metrics(self, values: Mapping[str, float], step: int = 0) -> None:
        """Logs metrics at a step, without values that are not finite, because MLflow shows NaN as 0."""
        now_ms = int(time.time() * 1000)
        finite = [Metric(name, float(value), now_ms, step) for name, value in values.items() if math.isfinite(value)]
        for start in range(0, len(finite), _BATCH):
            batch = finite[start : start + _BATCH]
            self.attempt(functools.partial(self.client.log_batch, self.run_id, metrics=batch))

    def tags(self, values: Mapping[str, str]) -> None:
        """Sets tags, in one batch."""
        tags = [RunTag(name, text) for name, text in values.items()]
        self.attempt(lambda: self.client.log_batch(self.run_id, tags=tags))

    def logged_steps(self, name: str) -> set[int]:
        """The steps at which a resumed run already has a metric."""
        found: list[Metric] = []
        self.attempt(lambda: found.extend(self.client.get_metric_history(self.run_id, name)))
        return {metric.step for metric in found}

    def artifact(self, path: Path, folder: str | None = None) -> None:
        """Logs a file, or a folder and everything in it."""
        log = self.client.log_artifacts if path.is_dir() else self.client.log_artifact
        self.attempt(lambda: log(self.run_id, str(path), folder))

    def file(self, content: bytes, name: str) -> None:
        """Logs a file with this content."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / name
            path.write_bytes(content)
            self.artifact(path)

    def describe(self, markdown: str) -> None:
        """Sets the description that the UI shows at the top of the run."""
        self.tags({"mlflow.note.content": markdown})

    def mark_complete(self, result_sha256: str) -> None:
        """Marks the run as complete with the sha256 of the result's manifest, unless the store has failed."""
        if not self.is_incomplete:
            self.tags({RESULT_TAG: result_sha256})

    def fail(self) -> None:
        """Makes the run end as FAILED although the stage continues without an error."""
        self.status = "FAILED"

    def end(self, status: str) -> None:
        """Ends the run as FINISHED, FAILED or KILLED."""
        self.attempt(lambda: self.client.set_terminated(self.run_id, status))

    def attempt(self, log: Callable[[], Any]) -> None:
        """Calls `log()` unless the store has failed before. Prints the first error instead of raising it."""
        if self.is_incomplete:
            return
        try:
            log()
        except Exception as error:  # MLflow does not wrap the exceptions of its store's driver
            self._state.has_failed = True
            print(
                f"MLflow: logging stopped ({first_line(error)}); "
                "the results are in the files, and the next `compare` logs them",
                file=sys.stderr,
            )


def first_line(error: Exception) -> str:
    """The first line of an error message of MLflow, printable and without passwords: drivers include the whole URI."""
    lines = str(error).strip().splitlines()
    return one_line(lines[0], 200) if lines else type(error).__name__
