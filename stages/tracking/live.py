"""A run while it is written to: tracking must not cost a result."""

from __future__ import annotations

import functools
import math
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import mlflow
from mlflow.entities import Metric, RunTag

from stages.tracking import store

RESULT_TAG = "result.sha256"
_BATCH = 900  # metrics in one call; the server's limit is 1,000


class LiveRun:
    """A run that has begun and not ended.

    Tracking must not cost a result: where the store fails in mid-run, one line says so, and `compare` logs from the
    files what is missing. The run itself then stays RUNNING until that, or until its stage begins anew: nobody can be
    told of its end.
    """

    def __init__(self, client: mlflow.MlflowClient, run_id: str) -> None:
        self.run_id = run_id
        self.status = "FINISHED"
        self._client = client
        self._lost = False

    def metrics(self, values: Mapping[str, float], step: int = 0) -> None:
        """Logs metrics at a step, in one batch; what is not finite is left out, because MLflow would show NaN as 0."""
        now_ms = int(time.time() * 1000)
        finite = [Metric(name, float(value), now_ms, step) for name, value in values.items() if math.isfinite(value)]
        for start in range(0, len(finite), _BATCH):
            batch = finite[start : start + _BATCH]
            self.attempt(functools.partial(self._client.log_batch, self.run_id, metrics=batch))

    def tags(self, values: Mapping[str, str]) -> None:
        """Sets tags, in one batch."""
        self.attempt(
            lambda: self._client.log_batch(self.run_id, tags=[RunTag(name, text) for name, text in values.items()])
        )

    def logged_steps(self, name: str) -> set[int]:
        """The steps at which a metric has been logged, where this run goes on with one that was interrupted."""
        found: list[Metric] = []
        self.attempt(lambda: found.extend(self._client.get_metric_history(self.run_id, name)))
        return {metric.step for metric in found}

    def artifact(self, path: Path, folder: str | None = None) -> None:
        """Logs a file, or a folder with all that lies in it."""
        log = self._client.log_artifacts if path.is_dir() else self._client.log_artifact
        self.attempt(lambda: log(self.run_id, str(path), folder))

    def figure(self, figure: Any, name: str) -> None:
        """Logs a matplotlib figure as an image."""
        self.attempt(lambda: self._client.log_figure(self.run_id, figure, name))

    def describe(self, markdown: str) -> None:
        """Sets the run's description, as the UI shows it at the top."""
        self.tags({"mlflow.note.content": markdown})

    def complete(self, result_sha256: str) -> None:
        """Marks the run as one that carries a whole result. Nothing is marked after the store has failed."""
        if not self._lost:
            self.tags({RESULT_TAG: result_sha256})

    def fail(self) -> None:
        """Lets the run end as FAILED although the stage goes on."""
        self.status = "FAILED"

    def end(self, status: str) -> None:
        """Ends the run."""
        self.attempt(lambda: self._client.set_terminated(self.run_id, status))

    def attempt(self, log: Callable[[], Any]) -> None:
        """Calls `log()`; a failure of the store costs nothing but what this run would still have shown."""
        if self._lost:
            return
        try:
            log()
        except Exception as error:  # MLflow passes on whatever its store's driver raises
            self._lost = True
            print(
                f"MLflow: this run cannot be logged any further ({first_line(error)}); "
                "the results are written to files, and the next `compare` logs them",
                file=sys.stderr,
            )


def first_line(error: Exception) -> str:
    """What an error of MLflow's says, in one line and without passwords."""
    lines = store.without_password(str(error)).strip().splitlines()  # drivers repeat the whole URI
    return lines[0][:200] if lines else type(error).__name__
