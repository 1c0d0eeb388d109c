"""An MLflow run that is being written. No result is lost if the tracking store fails, and no epoch if it restarts."""

from __future__ import annotations

import hashlib
import math
import posixpath
import re
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlflow
from mlflow.entities import Metric, RunTag
from mlflow.exceptions import MlflowException

from stages.errors import one_line
from stages.tracking.deadline import DeadlineError
from stages.tracking.store import is_locked

RESULT_TAG = "result.sha256"
FAILURE_TAG = "failure"  # why a training failed
PATIENCE_S = 60.0  # for a server that restarts
RETRY_S = 1.0
PAUSE_FACTOR = 9.0  # seconds until the next try, for each second that the last one took
_BATCH = 900  # metrics in one call; the server's limit is 1,000
_OF_SERVERS = (MlflowException, OSError, DeadlineError)  # OSError: all exceptions of `requests`
_LONGEST_NAME = 250  # of a metric, in MLflow
_LOOKS_ESCAPED = re.compile(r"_x(?=[0-9a-f]+_)")
_NOT_IN_A_PATH, _NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_. /-]"), re.compile(r"[^A-Za-z0-9_ -]")
_OF_A_CAUSE = re.compile(r"^\w+\(\W?HTTPS?Connection(?:Pool)?\([^)]*\): ")  # before what urllib3 says
_TEMPORARY = {408, 425, 429}  # status codes from 400 to 499 after which a request may be repeated


@dataclass
class StoreState:
    """What is known of a store. The runs of one process share it: each further call to a failed one takes seconds.

    Attributes:
        can_recover: whether to keep metrics and to wait after an error, because a server may answer again.
        has_failed: whether logging has stopped, so that something is missing.
        is_late: whether the user has been told that something is kept until the store answers again.
        patience_s: seconds that calls may still wait for the store, all together.
    """

    can_recover: bool = False
    has_failed: bool = False
    is_late: bool = False
    patience_s: float = field(default_factory=lambda: PATIENCE_S)


class ActiveRun:
    """A run that has started and not ended.

    If the store fails, one line on standard error reports it, and nothing more is logged to the runs that share
    `state`. `compare` logs the rest from the files. Until then, or until its stage runs again, the run stays RUNNING.

    If `state.can_recover`, metrics that a server does not accept are kept, and sent with the next ones, with the time
    at which they were logged: a training does not wait for a server that restarts. All other calls wait for it, all
    together at most `PATIENCE_S` seconds, unless it rejects a call.
    """

    def __init__(self, client: mlflow.MlflowClient, run_id: str, state: StoreState | None = None) -> None:
        self.client = client
        self.run_id = run_id
        self.status = "FINISHED"
        self._state = state or StoreState()
        self._kept: list[Metric] = []  # what the store has not confirmed, oldest first
        self._next_try_s = 0.0  # of time.monotonic()

    @property
    def is_incomplete(self) -> bool:
        """Whether logging has stopped, so that something may be missing in the run."""
        return self._state.has_failed

    def metrics(self, values: Mapping[str, float], step: int = 0) -> None:
        """Logs metrics at a step, without values that are not finite, because MLflow shows NaN as 0.

        Does not wait for a server that has failed: until it answers, one tenth of the time is spent on asking it.
        """
        now_ms, started_s = int(time.time() * 1000), time.monotonic()
        finite = {name: float(value) for name, value in values.items() if math.isfinite(value)}
        self._kept += [Metric(logged_name(name), value, now_ms, step) for name, value in finite.items()]
        if self.is_incomplete or not self._kept or started_s < self._next_try_s:
            return
        try:
            self._deliver()
        except Exception as error:  # MLflow does not wrap the exceptions of its store's driver
            ended_s = time.monotonic()
            self._next_try_s = ended_s + PAUSE_FACTOR * (ended_s - started_s)
            self._report(error, is_final=not self._may_recover(error))
        else:
            self._report_recovery()

    def _deliver(self) -> None:
        """Sends the metrics that are kept. The store recognises those whose answer was lost, and keeps them once."""
        while self._kept:
            batch = self._kept[:_BATCH]
            self.client.log_batch(self.run_id, metrics=batch)
            del self._kept[: len(batch)]

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
        """Ends the run as FINISHED, FAILED or KILLED. After a signal, which gives KILLED, it does not wait."""
        if status == "KILLED":
            self._state.patience_s = 0.0
        self.attempt(lambda: self.client.set_terminated(self.run_id, status))

    def attempt(self, log: Callable[[], Any]) -> None:
        """Delivers what is kept and calls `log()`, unless logging has stopped. Waits for a server that may recover.

        `log()` is called again if its answer was lost. The last error is printed instead of being raised.
        """
        while not self.is_incomplete:
            started_s = time.monotonic()
            try:
                self._deliver()
                log()
            except Exception as error:  # MLflow does not wrap the exceptions of its store's driver
                self._state.patience_s -= time.monotonic() - started_s + RETRY_S
                has_time = self._state.patience_s > 0
                self._report(error, is_final=not (has_time and self._may_recover(error)))
                if has_time and not self.is_incomplete:
                    time.sleep(RETRY_S)
            else:
                self._report_recovery()
                return

    def _may_recover(self, error: Exception) -> bool:
        return self._state.can_recover and isinstance(error, _OF_SERVERS) and not is_rejection(error)

    def _report(self, error: Exception, *, is_final: bool) -> None:
        if is_final:
            self._state.has_failed = True
            print(
                f"MLflow: logging stopped ({first_line(error)}); "
                "the results are in the files, and the next `compare` logs them",
                file=sys.stderr,
            )
        elif not self._state.is_late:
            self._state.is_late = True
            reason = f"MLflow: the store does not answer ({first_line(error)})"
            print(f"{reason}; what it misses is kept and sent when it does", file=sys.stderr)

    def _report_recovery(self) -> None:
        if self._state.is_late:
            self._state.is_late = False
            print("MLflow: the store answers again, and has everything that was kept", file=sys.stderr)


def logged_name(name: str) -> str:
    """The name under which a metric is logged: other characters than MLflow allows become `_x40_`, by their code.

    Different names stay different. In a user's metric `/` may be part of the name.
    """
    plain = _LOOKS_ESCAPED.sub("_x5f_x", name)
    is_path = posixpath.normpath(plain) == plain and not plain.startswith(("/", "."))
    shown = (_NOT_IN_A_PATH if is_path else _NOT_IN_A_NAME).sub(lambda found: f"_x{ord(found[0]):x}_", plain)
    if len(shown) <= _LONGEST_NAME:
        return shown
    return f"{shown[: _LONGEST_NAME - 17]}_{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"


def is_rejection(error: Exception) -> bool:
    """Whether a server answered that it will not do what was asked: it would answer the same again."""
    return 400 <= http_status(error) < 500 and http_status(error) not in _TEMPORARY


def http_status(error: Exception) -> int:
    """The status code of a server's answer; 500 without an answer."""
    if isinstance(error, MlflowException):
        return int(error.get_http_status_code())  # type: ignore[no-untyped-call]
    return int(getattr(getattr(error, "response", None), "status_code", 500))  # of an upload


def first_line(error: Exception) -> str:
    """The first line of an error message of MLflow, printable and without passwords: drivers include the whole URI."""
    if is_locked(error):
        return "another process has locked the database"
    lines = str(error).strip().splitlines()
    if not lines:
        return type(error).__name__
    cause = lines[0].rpartition("(Caused by ")[2]  # urllib3's, behind the names of host, port and request
    return one_line(_OF_A_CAUSE.sub("", cause).rstrip("\"')"), 200)
