"""Starts, finds and ends MLflow runs."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus

import mlflow
from mlflow.entities import Experiment, Param, Run
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import RESOURCE_ALREADY_EXISTS, ErrorCode
from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID

from halfstep.errors import NO_SPACE, HalfstepError, TrackingError, is_disk_full, printable, without_password
from halfstep.params.schema import Params, TrackingParams
from halfstep.tracking import client, provenance, store
from halfstep.tracking.active_run import FAILURE_TAG, RESULT_TAG, ActiveRun, StoreState, first_line, http_status
from halfstep.tracking.run_params import run_params

logging.getLogger("mlflow").setLevel(logging.WARNING)
logging.getLogger("alembic").setLevel(logging.WARNING)
# The errors that these two log are also raised, and then reported in one line.
logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)
logging.getLogger("mlflow.system_metrics").setLevel(logging.CRITICAL)  # it prints the password of a server that fails

_EXPERIMENT_TAGS = {"mlflow.experimentKind": "custom_model_development"}  # the UI opens its pages for training


@dataclass(frozen=True)
class RunIdentity:
    """The name of a run, and the values of the tags that identify it."""

    name: str
    stage: str
    variant: str | None = None
    seed: int | None = None
    format: str | None = None

    def tags(self) -> dict[str, str]:
        """The tags that apply to the run."""
        values = {"stage": self.stage, "variant": self.variant, "seed": self.seed, "format": self.format}
        return {name: str(value) for name, value in values.items() if value is not None}


class Tracker:
    """An experiment in a tracking store. Creates the experiment if it does not exist.

    Args:
        tracking: section `tracking` of the parameters.

    Raises:
        TrackingError: the store cannot be used, or the experiment has been deleted.
    """

    def __init__(self, tracking: TrackingParams) -> None:
        uri = store.resolve_uri(tracking)
        mlflow.set_tracking_uri(uri)  # the model registry finds a model's files by it
        self._shown_uri, self._is_local = without_password(uri), store.sqlite_path(uri) is not None
        self._experiment_name = tracking.experiment
        self._state = StoreState()
        with self._store_errors():
            self.client = client.connect(uri)
        self._experiment_id = self._experiment(tracking.experiment, uri)

    @contextmanager
    def run(self, identity: RunIdentity, params: Params) -> Iterator[ActiveRun]:
        """Starts a run, yields it, and ends it: FINISHED, FAILED, or KILLED after a signal.

        Ends the runs with the same name that a killed process of this checkout left RUNNING.

        Args:
            identity: name and tags of the run.
            params: logged with the run.

        Raises:
            TrackingError: the store cannot be used.
            DataError: `data/environment.json` is missing.
        """
        with self._store_errors():
            self.close_abandoned(identity)
            run_id = self._created(identity).info.run_id
            logged = [Param(name, text) for name, text in run_params(params, identity.variant).items()]
            self.client.log_batch(run_id, params=logged)
        active = ActiveRun(self.client, run_id, self._state)
        try:
            yield active
        except BaseException as error:
            was_killed = isinstance(error, (KeyboardInterrupt, SystemExit))
            active.end("KILLED" if was_killed else "FAILED")
            raise
        active.end(active.status)

    def close_abandoned(self, identity: RunIdentity | None = None) -> None:
        """Ends runs that processes of this checkout left RUNNING: as KILLED unless complete.

        Runs of other working folders of the checkout, such as those of DVC's experiments, are left alone while their
        folders exist. The caller makes sure that no process writes to the others.

        Args:
            identity: only runs with this name.
        """
        tags = provenance.checkout_tag() | (identity.tags() if identity else {})
        with self._store_errors():
            for run in self._search(tags, "RUNNING"):
                if provenance.is_of_this_folder(run.data.tags):
                    self.client.set_terminated(run.info.run_id, _last_status(run))

    def find(self, result_sha256: str, identity: RunIdentity) -> str | None:
        """Identifier of the newest run that is complete with the given sha256 of a manifest; None without one.

        A run of a SQLite store whose artifacts were deleted is not complete.
        """
        with self._store_errors():
            runs = self._search({RESULT_TAG: result_sha256, **identity.tags()})
        return next((run.info.run_id for run in runs if self._has_artifacts(run)), None)

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
            experiment = self.client.get_experiment_by_name(name)  # another process was faster
            if error.error_code != ErrorCode.Name(RESOURCE_ALREADY_EXISTS) or experiment is None:
                raise
            return experiment
        return self.client.get_experiment(number)

    def _created(self, identity: RunIdentity) -> Run:
        tags = identity.tags() | provenance.writer_tags() | provenance.context_tags()
        return self.client.create_run(self._experiment_id, tags=tags, run_name=identity.name)

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
        if is_disk_full(error):
            return f"the tracking store {self._shown_uri}: {NO_SPACE}"
        return (
            f"the tracking store {self._shown_uri} cannot be used ({first_line(error)}); "
            "check tracking.uri and MLFLOW_TRACKING_URI, and that the server is running"
        )


def _last_status(run: Run) -> str:
    """The status of an abandoned run. Of a complete one, only the request that ends it was lost."""
    if RESULT_TAG not in run.data.tags:
        return "KILLED"
    return "FAILED" if FAILURE_TAG in run.data.tags else "FINISHED"
