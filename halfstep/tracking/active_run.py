"""An MLflow run that is being written. No result is lost if the tracking store fails."""

from __future__ import annotations

import errno
import hashlib
import math
import os
import posixpath
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlflow
from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException
from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

from halfstep.errors import is_disk_full, one_line
from halfstep.tracking.store import is_locked

RESULT_TAG = "result.sha256"
FAILURE_TAG = "failure"  # why a training failed
PAUSE_FACTOR = 9.0  # seconds until the next try, for each second that the last one took
_BATCH = 900  # metrics in one call; the server's limit is 1,000
_LONGEST_NAME = 250  # of a metric, in MLflow
_LOOKS_ESCAPED = re.compile(r"_x(?=[0-9a-f]+_)")
_NOT_IN_A_PATH, _NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_. /-]"), re.compile(r"[^A-Za-z0-9_ -]")
_OF_A_CAUSE = re.compile(r"^\w+\(\W?HTTPS?Connection(?:Pool)?\([^)]*\): ")  # before what urllib3 says


@dataclass
class StoreState:
    """Whether logging has stopped; the runs of a process share it: each call to a failed store takes seconds."""

    has_failed: bool = False


class ActiveRun:
    """A run that has started and not ended.

    If the store fails, one line on standard error reports it, and nothing more is logged to the runs that share
    `state`. The next `compare` logs the result from the files, in a run of its own, and ends this one.
    """

    def __init__(self, client: mlflow.MlflowClient, run_id: str, state: StoreState | None = None) -> None:
        self.client = client
        self.run_id = run_id
        self.status = "FINISHED"
        self._state = state or StoreState()
        self._kept: list[Metric] = []  # of epochs: what the store has not confirmed
        self._epochs: set[int] = set()
        self._is_late, self._next_try_s = False, 0.0  # of time.monotonic()

    @property
    def is_incomplete(self) -> bool:
        """Whether logging has stopped, so that something may be missing in the run."""
        return self._state.has_failed

    def metrics(self, values: Mapping[str, float]) -> None:
        """Logs metrics, without values that are not finite, because MLflow shows NaN as 0."""
        self.attempt(lambda: self._send(_as_metrics(values)))

    @contextmanager
    def system_metrics(self) -> Iterator[None]:
        """In the block, the load of the machine is logged every 10 s, under `system/`."""
        monitor = SystemMetricsMonitor(self.run_id, tracking_uri=self.client.tracking_uri)
        monitor.start()
        try:
            yield
        finally:
            monitor.finish()

    def epochs(self, rows: Iterable[Mapping[str, float]]) -> None:
        """Logs the epochs that the run has not got: rows with the key `epoch`."""
        self._keep(rows)
        self.attempt(self._send_rows)

    def live_epochs(self, rows: Iterable[Mapping[str, float]]) -> None:
        """As `epochs`, while a training goes on: it does not wait for a server that restarts.

        What the server does not accept is sent after a later epoch, with the time at which its own ended. Until the
        server answers, one tenth of the time is spent on asking it.
        """
        self._keep(rows)
        started_s = time.monotonic()
        if self.is_incomplete or started_s < self._next_try_s:
            return
        try:
            self._send_rows()
        except Exception as error:  # MLflow does not wrap the exceptions of its store's driver
            ended_s = time.monotonic()
            self._next_try_s = ended_s + PAUSE_FACTOR * (ended_s - started_s)
            if not self._is_late:
                print(
                    f"MLflow: the store does not answer ({first_line(error)}); epochs are sent later", file=sys.stderr
                )
            self._is_late = True

    def _keep(self, rows: Iterable[Mapping[str, float]]) -> None:
        for row in rows:
            number = int(row["epoch"])
            if number not in self._epochs:
                self._epochs.add(number)
                self._kept += _as_metrics({name: value for name, value in row.items() if name != "epoch"}, number)

    def _send_rows(self) -> None:
        """Sends what is kept. The store recognises epochs whose answer was lost, and has them once."""
        self._send(self._kept)
        self._kept.clear()

    def _send(self, metrics: Sequence[Metric]) -> None:
        for first in range(0, len(metrics), _BATCH):
            self.client.log_batch(self.run_id, metrics=metrics[first : first + _BATCH])

    def params(self, values: Mapping[str, str]) -> None:
        """Logs params beside those of `params.yaml`."""
        logged = [Param(name, text) for name, text in values.items()]
        self.attempt(lambda: self.client.log_batch(self.run_id, params=logged))

    def tags(self, values: Mapping[str, str]) -> None:
        """Sets tags, in one batch."""
        tags = [RunTag(name, text) for name, text in values.items()]
        self.attempt(lambda: self.client.log_batch(self.run_id, tags=tags))

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

    def rename(self, name: str) -> None:
        """Gives the run another name than its identity has."""
        self.attempt(lambda: self.client.update_run(self.run_id, name=name))

    def describe(self, markdown: str) -> None:
        """Sets the description that the UI shows at the top of the run."""
        self.tags({"mlflow.note.content": markdown})

    def mark_complete(self, result_sha256: str) -> None:
        """Marks the run as complete with the sha256 of the result's manifest, unless the store has failed."""
        self.tags({RESULT_TAG: result_sha256})

    def fail(self) -> None:
        """Makes the run end as FAILED although the stage continues without an error."""
        self.status = "FAILED"

    def end(self, status: str) -> None:
        """Ends the run as FINISHED, FAILED or KILLED."""
        self.attempt(lambda: self.client.set_terminated(self.run_id, status))

    def attempt(self, log: Callable[[], Any]) -> None:
        """Calls `log()`, unless logging has stopped. An error stops it, and is printed instead of being raised."""
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


def _as_metrics(values: Mapping[str, float], step: int = 0) -> list[Metric]:
    now_ms = int(time.time() * 1000)
    return [
        Metric(logged_name(name), float(value), now_ms, step) for name, value in values.items() if math.isfinite(value)
    ]


def logged_name(name: str) -> str:
    """The name under which a metric is logged: other characters than MLflow allows become `_x40_`, by their code.

    Different names stay different. In a user's metric `/` may be part of the name.
    """
    plain = _LOOKS_ESCAPED.sub("_x5f_x", name)
    is_path = posixpath.normpath(plain) == plain and not plain.startswith(("/", "."))
    shown = (_NOT_IN_A_PATH if is_path else _NOT_IN_A_NAME).sub(lambda match: f"_x{ord(match[0]):x}_", plain)
    if len(shown) <= _LONGEST_NAME:
        return shown
    return f"{shown[: _LONGEST_NAME - 17]}_{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"


def http_status(error: Exception) -> int:
    """The status code of a server's answer; 500 without an answer."""
    if isinstance(error, MlflowException):
        return int(error.get_http_status_code())
    return int(getattr(getattr(error, "response", None), "status_code", 500))  # of an upload


def first_line(error: Exception) -> str:
    """The first line of an error message of MLflow, printable and without passwords: drivers include the whole URI."""
    if is_locked(error):
        return "another process has locked the database"
    if is_disk_full(error):
        return os.strerror(errno.ENOSPC)
    lines = str(error).strip().splitlines()
    if not lines:
        return type(error).__name__
    cause = lines[0].rpartition("(Caused by ")[2]  # urllib3's, behind the names of host, port and request
    return one_line(_OF_A_CAUSE.sub("", cause).rstrip("\"')"), 200)
