"""Starts, finds, resumes and ends MLflow runs."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

import mlflow
from mlflow.entities import Experiment, Param, Run, RunTag
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import INTERNAL_ERROR, RESOURCE_ALREADY_EXISTS, ErrorCode
from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID

from stages import locking, supervision
from stages.errors import HalfstepError, TrackingError, printable, without_password
from stages.files import original_root
from stages.params import Params, TrackingParams
from stages.tracking import client, moved, provenance, store
from stages.tracking.active_run import FAILURE_TAG, RESULT_TAG, ActiveRun, StoreState, first_line, http_status
from stages.tracking.run_params import run_params

logging.getLogger("mlflow").setLevel(logging.WARNING)
logging.getLogger("alembic").setLevel(logging.WARNING)
# The errors that these two log are also raised, and then reported in one line.
logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)

CLOSED_TAG = "halfstep.closed"  # why another process has ended a run
_EXPERIMENT_TAGS = {"mlflow.experimentKind": "custom_model_development"}  # the UI opens its pages for training


@dataclass(frozen=True)
class RunIdentity:
    """The name of a run, and the values of the tags that identify it."""

    name: str
    stage: str
    variant: str | None = None
    seed: int | None = None

    def tags(self) -> dict[str, str]:
        """The tags that apply to the run."""
        values = {"stage": self.stage, "variant": self.variant, "seed": self.seed}
        return {name: str(value) for name, value in values.items() if value is not None}

    @classmethod
    def from_tags(cls, name: str, tags: Mapping[str, str]) -> RunIdentity:
        """The identity of a run in the store."""
        seed = tags.get("seed")
        return cls(name, tags.get("stage", ""), tags.get("variant"), None if seed is None else int(seed))

    @property
    def writer(self) -> str:
        """The stage that writes the run, as DVC names it. The writing process holds the lock of that name."""
        return self.stage if self.seed is None else f"{self.stage}@{self.variant}-{self.seed}"


class Tracker:
    """An experiment in a tracking store. Creates the experiment if it does not exist.

    Args:
        tracking: section `tracking` of the parameters.
        waits: whether runs keep their metrics while a server restarts, and wait for it at their end. For trainings;
            the other stages log all at once, and `compare` can do that, too.

    Raises:
        TrackingError: the store cannot be used, or the experiment has been deleted.
    """

    def __init__(self, tracking: TrackingParams, *, waits: bool = False) -> None:
        uri = store.resolve_uri(tracking)
        mlflow.set_tracking_uri(uri)  # the model registry finds a model's files by it
        self._shown_uri, self._is_local = without_password(uri), store.sqlite_path(uri) is not None
        self._experiment_name = tracking.experiment
        self._state = StoreState(can_recover=waits and not self._is_local)
        with self._store_errors():
            self.client = client.connect(uri)
            if (path := store.sqlite_path(uri)) and (line := moved.follow(path, tracking.experiment)):
                print(line, flush=True)
        self._experiment_id = self._experiment(tracking.experiment, uri)

    @contextmanager
    def run(self, identity: RunIdentity, params: Params, run_id: str | None = None) -> Iterator[ActiveRun]:
        """Starts or resumes a run, yields it, and ends it: FINISHED, FAILED, or KILLED after a signal.

        Closes runs of the same stage that a killed process of this checkout left RUNNING.

        Args:
            identity: name and tags of the run.
            params: logged with the run; a resumed run keeps those that it has.
            run_id: a run to resume; a new run is started if it is deleted or complete.

        Raises:
            TrackingError: the store cannot be used.
            DataError: `data/environment.json` is missing.
        """
        with self._store_errors():
            run = (run_id and self._reopened(run_id)) or self._created(identity)
            supervision.logs_a_run()
            self.close_abandoned(identity, keep=run.info.run_id)
            logged = run_params(params, identity.variant)
            missing = [Param(name, text) for name, text in logged.items() if name not in run.data.params]
            self.client.log_batch(run.info.run_id, params=missing, tags=_changed_writer(run))
        active = ActiveRun(self.client, run.info.run_id, self._state)
        try:
            yield active
        except BaseException as error:
            was_killed = isinstance(error, (KeyboardInterrupt, SystemExit))
            active.end("KILLED" if was_killed else "FAILED")
            raise
        active.end(active.status)

    def close_abandoned(self, identity: RunIdentity | None = None, keep: str = "") -> None:
        """Ends runs that processes of this checkout left RUNNING, of one stage or of all: as KILLED unless complete."""
        with self._store_errors():
            self._close(run for run in self._abandoned(identity) if run.info.run_id != keep)

    def close_running(self, tags: Mapping[str, str], reason: str) -> int:
        """Ends the RUNNING runs that have `tags`: as KILLED unless complete.

        The caller knows that no process writes to them any more. They get the tag `CLOSED_TAG` with the reason.

        Returns:
            The number of runs that were ended.
        """
        with self._store_errors():
            found = self._search(tags, "RUNNING")
            for run in found:
                self.client.set_tag(run.info.run_id, CLOSED_TAG, reason)
            self._close(found)
        return len(found)

    def _close(self, runs: Iterable[Run]) -> None:
        for run in runs:
            self.client.set_terminated(run.info.run_id, _last_status(run))

    def unfinished(self, identity: RunIdentity, params: Params) -> str | None:
        """Identifier of the newest abandoned run of this checkout with the same parameters; None without one."""
        wanted = run_params(params, identity.variant)
        with self._store_errors():
            return next((run.info.run_id for run in self._abandoned(identity) if run.data.params == wanted), None)

    def find(self, result_sha256: str, identity: RunIdentity) -> str | None:
        """Identifier of the newest run that is complete with the given sha256 of a manifest; None without one.

        A run of a SQLite store whose artifacts were deleted is not complete.
        """
        with self._store_errors():
            found = self._search({RESULT_TAG: result_sha256, **identity.tags()})
        return next((run.info.run_id for run in found if self._has_artifacts(run)), None)

    def set_parent(self, parent: str, children: Sequence[str]) -> None:
        """Makes `parent` the parent of `children` in the UI. Nothing else about a run changes after it has ended."""
        with self._store_errors():
            for child in children:
                self.client.set_tag(child, MLFLOW_PARENT_RUN_ID, parent)

    def _has_artifacts(self, run: Run) -> bool:
        uri = str(run.info.artifact_uri)
        return not (self._is_local and uri.startswith("file:")) or store.has_artifacts(uri)

    def _experiment(self, name: str, uri: str) -> str:
        with self._store_errors():
            known = self.client.get_experiment_by_name(name) or self._created_experiment(name, uri)
        if known.lifecycle_stage != "active":
            number = printable(str(known.experiment_id))
            raise TrackingError(
                f"tracking.experiment is '{name}', which has been deleted in {self._shown_uri}; restore it with "
                f"`mlflow experiments restore --experiment-id {number}`, or choose another name"
            )
        return str(known.experiment_id)

    def _created_experiment(self, name: str, uri: str) -> Experiment:
        try:
            number = self.client.create_experiment(name, store.artifact_location(uri), _EXPERIMENT_TAGS)
        except MlflowException as error:
            found = self.client.get_experiment_by_name(name)  # another process was faster
            if error.error_code != ErrorCode.Name(RESOURCE_ALREADY_EXISTS) or found is None:
                raise
            return found
        return self.client.get_experiment(number)

    def _created(self, identity: RunIdentity) -> Run:
        tags = identity.tags() | provenance.writer_tags() | provenance.context_tags()
        return self.client.create_run(self._experiment_id, tags=tags, run_name=identity.name)

    def _reopened(self, run_id: str) -> Run | None:
        """The run with its status set to RUNNING; None if it is deleted, in another experiment, or complete."""
        try:
            run = self.client.get_run(run_id)
        except MlflowException as error:
            if error.error_code == ErrorCode.Name(INTERNAL_ERROR):
                raise  # the store failed: it has not said that the run is missing
            return None
        is_active = run.info.experiment_id == self._experiment_id and run.info.lifecycle_stage == "active"
        if not is_active or RESULT_TAG in run.data.tags:
            return None
        if run.info.status != "RUNNING":
            self.client.update_run(run_id, "RUNNING")
        return run

    def _abandoned(self, identity: RunIdentity | None) -> list[Run]:
        """Runs of this checkout that are RUNNING while no process holds the lock of their stage, newest first."""
        tags = provenance.checkout_tag() | (identity.tags() if identity else {})
        return [run for run in self._search(tags, "RUNNING") if _is_abandoned(run)]

    def _search(self, tags: Mapping[str, str], status: str | None = None) -> list[Run]:
        clauses = [f"tags.`{name}` = '{value}'" for name, value in tags.items()]
        clauses += [f"attributes.status = '{status}'"] if status else []
        query, order = " and ".join(clauses), ["attributes.start_time DESC"]
        return list(self.client.search_runs([self._experiment_id], query, order_by=order))

    @contextmanager
    def _store_errors(self) -> Iterator[None]:
        try:
            yield
        except HalfstepError:
            raise
        except Exception as error:  # MLflow does not wrap the exceptions of its store's driver
            raise TrackingError(self._explained(error)) from error

    def _explained(self, error: Exception) -> str:
        if http_status(error) == HTTPStatus.FORBIDDEN:
            return (
                f"tracking.experiment is '{self._experiment_name}', and {self._shown_uri} does not allow this user to "
                "log to it (403 Forbidden); the user who made the experiment, or an administrator, can grant EDIT "
                "(docs/tracking.md); or choose another name"
            )
        return (
            f"the tracking store {self._shown_uri} cannot be used ({first_line(error)}); "
            "check tracking.uri and MLFLOW_TRACKING_URI, and that the server is running"
        )


def _changed_writer(run: Run) -> list[RunTag]:
    """The tags that say who writes a run, where they differ: a run may be resumed in another checkout."""
    tags = {name: "" for name in (provenance.FLEET_TAG,) if name in run.data.tags} | provenance.writer_tags()
    return [RunTag(name, text) for name, text in tags.items() if run.data.tags.get(name) != text]


def _last_status(run: Run) -> str:
    """The status of an abandoned run. Of a complete one, only the request that ends it was lost."""
    if RESULT_TAG not in run.data.tags:
        return "KILLED"
    return "FAILED" if FAILURE_TAG in run.data.tags else "FINISHED"


def _is_abandoned(run: Run) -> bool:
    identity = RunIdentity.from_tags(str(run.info.run_name), run.data.tags)
    folder: Path = original_root() / run.data.tags.get(provenance.FOLDER_TAG, ".")
    return locking.is_unlocked(identity.writer, folder)
