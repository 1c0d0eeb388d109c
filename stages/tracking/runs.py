"""MLflow runs: how they begin, what they carry, and that each ends as what it was."""

from __future__ import annotations

import functools
import logging
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# A server that does not answer blocks a call for four minutes at MLflow's own settings.
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
os.environ.pop("MLFLOW_RUN_ID", None)  # would silently take the place of every run that is begun here

import mlflow
from mlflow.entities import Metric, Param, Run, RunTag
from mlflow.exceptions import MlflowException
from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID

from stages import files
from stages.environment import fingerprint
from stages.errors import TrackingError
from stages.params import Params, TrackingParams
from stages.tracking import store

logging.getLogger("mlflow").setLevel(logging.WARNING)
logging.getLogger("alembic").setLevel(logging.WARNING)
# What these two report is raised as well, and told in one line.
logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)

RESULT_TAG = "result.sha256"
_EXPERIMENT_TAGS = {"mlflow.experimentKind": "custom_model_development"}  # the UI opens its pages for training
_BATCH = 900  # metrics in one call; the server's limit is 1,000


@dataclass(frozen=True)
class Described:
    """What a run is: its name and the tags that tell it from others."""

    name: str
    stage: str
    variant: str | None = None
    seed: int | None = None

    def tags(self) -> dict[str, str]:
        """The tags that apply."""
        values = {"stage": self.stage, "variant": self.variant, "seed": self.seed}
        return {name: str(value) for name, value in values.items() if value is not None}


class Tracker:
    """An experiment of a tracking store.

    Raises:
        TrackingError: the store cannot be reached or is not one.
    """

    def __init__(self, tracking: TrackingParams) -> None:
        uri = store.resolve_uri(tracking)
        mlflow.set_tracking_uri(uri)
        self._shown_uri = store.without_password(uri)
        self._client = mlflow.MlflowClient(uri)
        self._experiment_id = self._experiment(tracking.experiment, uri)

    @contextmanager
    def run(self, described: Described, params: Params) -> Iterator[LiveRun]:
        """Begins a run, yields it, and ends it as what it was: FINISHED, FAILED, or KILLED where a signal ended it."""
        run = self._begin(described, params)
        live = LiveRun(self._client, run.info.run_id)
        try:
            yield live
        except BaseException as error:
            was_killed = isinstance(error, (KeyboardInterrupt, SystemExit))
            live.end("KILLED" if was_killed else "FAILED")
            raise
        live.end(live.status)

    def find(self, result_sha256: str, described: Described) -> str | None:
        """Identifier of the newest run that carries a result, told by its manifest's digest; None if there is none."""
        wanted = {RESULT_TAG: result_sha256, **described.tags()}
        clauses = " and ".join(f"tags.`{name}` = '{value}'" for name, value in wanted.items())
        found = self._client.search_runs(
            [self._experiment_id], clauses, max_results=1, order_by=["attributes.start_time DESC"]
        )
        return found[0].info.run_id if found else None

    def adopt(self, parent: str, children: Sequence[str]) -> None:
        """Makes `parent` the run that lists `children`: the one thing that changes in a run that has ended."""
        for child in children:
            self._client.set_tag(child, MLFLOW_PARENT_RUN_ID, parent)

    def _experiment(self, name: str, uri: str) -> str:
        try:
            known = self._client.get_experiment_by_name(name)
            if known is None:
                return self._client.create_experiment(name, _artifact_location(uri), _EXPERIMENT_TAGS)
        except Exception as error:  # MLflow passes on whatever its store's driver raises
            raise TrackingError(
                f"the tracking store {self._shown_uri} cannot be used ({_first_line(error)}); "
                "check tracking.uri and MLFLOW_TRACKING_URI, and that the server runs"
            ) from error
        if known.lifecycle_stage != "active":
            raise TrackingError(
                f"tracking.experiment is '{name}', which has been deleted in {self._shown_uri}; restore it with "
                f"`mlflow experiments restore --experiment-id {known.experiment_id}`, or name another"
            )
        return str(known.experiment_id)

    def _begin(self, described: Described, params: Params) -> Run:
        tags = {**described.tags(), **_context_tags()}
        run = self._client.create_run(self._experiment_id, tags=tags, run_name=described.name)
        logged = run_params(params, described.variant)
        self._client.log_batch(run.info.run_id, params=[Param(name, value) for name, value in logged.items()])
        return run


class LiveRun:
    """A run that has begun and not ended.

    Tracking must not cost a result: where the store fails in mid-run, one line says so, and `compare` logs from the
    files what is missing.
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
        except (MlflowException, OSError) as error:
            self._lost = True
            print(
                f"MLflow: this run cannot be logged any further ({_first_line(error)}); "
                "the results are written to files, and the next `compare` logs them",
                file=sys.stderr,
            )


def run_params(params: Params, variant: str | None) -> dict[str, str]:
    """MLflow params of a run: dotted names, the same keys for every variant, with its own entry as `variant.*`."""
    tree = params.model_dump(mode="json")
    entries = tree.pop("variants")
    del tree["tracking"]  # says where runs are kept, and may hold a password
    if variant is not None:
        tree["variant"] = entries[variant]
    return {name: _as_text(value) for name, value in _flat(tree)}


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _as_text(value: Any) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return text if len(text) <= 6000 else text[:5997] + "..."  # MLflow's limit


def _artifact_location(uri: str) -> str | None:
    """Beside a SQLite store, absolute, so that runs of temporary checkouts end there too; a server knows its own."""
    path = store.sqlite_path(uri)
    return (path.parent / "mlruns").as_uri() if path else None


def _context_tags() -> dict[str, str]:
    machine = files.read_json(files.ENVIRONMENT_FILE)
    tags = {"device": str(machine["device"]), "environment": fingerprint.digest(machine)}
    if name := os.environ.get("DVC_EXP_NAME"):
        tags["dvc.exp_name"] = name
    return tags | _git_tags()


def _git_tags() -> dict[str, str]:
    """The commit, and whether tracked files differ from it; `dvc.lock` does not count: the pipeline writes it."""
    commit = _git("rev-parse", "HEAD")
    if commit is None:
        return {}
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ".", ":(exclude)dvc.lock")
    return {"git.commit": commit, "git.dirty": str(bool(changed)).lower()}


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _first_line(error: Exception) -> str:
    lines = store.without_password(str(error)).strip().splitlines()  # drivers repeat the whole URI
    return lines[0][:200] if lines else type(error).__name__
