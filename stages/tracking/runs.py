"""MLflow runs: how they begin, what they carry, and that each ends as what it was."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlflow
from mlflow.entities import Param, Run
from mlflow.exceptions import MlflowException
from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID

from stages import locking
from stages.errors import HalfstepError, TrackingError
from stages.files import original_root
from stages.params import Params, TrackingParams
from stages.tracking import origin, store
from stages.tracking.live import RESULT_TAG, LiveRun, first_line

logging.getLogger("mlflow").setLevel(logging.WARNING)
logging.getLogger("alembic").setLevel(logging.WARNING)
# What these two report is raised as well, and told in one line.
logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)

_EXPERIMENT_TAGS = {"mlflow.experimentKind": "custom_model_development"}  # the UI opens its pages for training


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

    @classmethod
    def from_tags(cls, name: str, tags: Mapping[str, str]) -> Described:
        """What a run says that it is."""
        seed = tags.get("seed")
        return cls(name, tags.get("stage", ""), tags.get("variant"), None if seed is None else int(seed))

    @property
    def writer(self) -> str:
        """Whose lock is held while the run is written: the stage, as DVC names it."""
        return self.stage if self.seed is None else f"{self.stage}@{self.variant}-{self.seed}"


class Tracker:
    """An experiment of a tracking store.

    Raises:
        TrackingError: the store cannot be reached or is not one.
    """

    def __init__(self, tracking: TrackingParams) -> None:
        uri = store.resolve_uri(tracking)
        mlflow.set_tracking_uri(uri)
        self._shown_uri = store.without_password(uri)
        with self._answering():
            self._client = mlflow.MlflowClient(uri)  # looks into a database already
        self._experiment_id = self._experiment(tracking.experiment, uri)

    @contextmanager
    def run(self, described: Described, params: Params, run_id: str | None = None) -> Iterator[LiveRun]:
        """Begins a run, yields it, and ends it as what it was: FINISHED, FAILED, or KILLED where a signal ended it.

        Runs of the same stage that this checkout has left RUNNING, because their process was killed, are closed.

        Args:
            described: its name and tags.
            params: logged with it.
            run_id: a run to go on with, unless it is gone or carries a whole result.

        Raises:
            TrackingError: the store cannot be reached.
        """
        with self._answering():
            run = (run_id and self._gone_on_with(run_id)) or self._begun(described)
            self.close_abandoned(described, but=run.info.run_id)
            logged = run_params(params, described.variant)
            missing = [Param(name, text) for name, text in logged.items() if name not in run.data.params]
            self._client.log_batch(run.info.run_id, params=missing)
        live = LiveRun(self._client, run.info.run_id)
        try:
            yield live
        except BaseException as error:
            was_killed = isinstance(error, (KeyboardInterrupt, SystemExit))
            live.end("KILLED" if was_killed else "FAILED")
            raise
        live.end(live.status)

    def close_abandoned(self, described: Described | None = None, but: str = "") -> None:
        """Ends as KILLED what this checkout has left RUNNING, of one stage or of all: its process is gone."""
        with self._answering():
            for run in self._abandoned(described):
                if run.info.run_id != but:
                    self._client.set_terminated(run.info.run_id, "KILLED")

    def unfinished(self, described: Described, params: Params) -> str | None:
        """A run of this checkout that could not be ended, and that has the same parameters; None if there is none."""
        wanted = run_params(params, described.variant)
        with self._answering():
            return next((run.info.run_id for run in self._abandoned(described) if run.data.params == wanted), None)

    def find(self, result_sha256: str, described: Described) -> str | None:
        """Identifier of the newest run that carries a result, told by its manifest's digest; None if there is none."""
        with self._answering():
            found = self._search({RESULT_TAG: result_sha256, **described.tags()}, most=1)
        return found[0].info.run_id if found else None

    def adopt(self, parent: str, children: Sequence[str]) -> None:
        """Makes `parent` the run that lists `children`: the one thing that changes in a run that has ended."""
        with self._answering():
            for child in children:
                self._client.set_tag(child, MLFLOW_PARENT_RUN_ID, parent)

    def _experiment(self, name: str, uri: str) -> str:
        with self._answering():
            known = self._client.get_experiment_by_name(name)
            if known is None:
                return self._client.create_experiment(name, _artifact_location(uri), _EXPERIMENT_TAGS)
        if known.lifecycle_stage != "active":
            raise TrackingError(
                f"tracking.experiment is '{name}', which has been deleted in {self._shown_uri}; restore it with "
                f"`mlflow experiments restore --experiment-id {known.experiment_id}`, or name another"
            )
        return str(known.experiment_id)

    def _begun(self, described: Described) -> Run:
        tags = described.tags() | origin.tags() | origin.context_tags()
        return self._client.create_run(self._experiment_id, tags=tags, run_name=described.name)

    def _gone_on_with(self, run_id: str) -> Run | None:
        """The run, RUNNING again; None where it is deleted, elsewhere, or whole."""
        try:
            run = self._client.get_run(run_id)
        except MlflowException:
            return None
        of_here = run.info.experiment_id == self._experiment_id and run.info.lifecycle_stage == "active"
        if not of_here or RESULT_TAG in run.data.tags:
            return None
        if run.info.status != "RUNNING":
            self._client.update_run(run_id, "RUNNING")
        return run

    def _abandoned(self, described: Described | None) -> list[Run]:
        """Runs of this checkout that are RUNNING although no process holds their stage's lock, the newest first."""
        tags = origin.checkout_tag() | (described.tags() if described else {})
        return [run for run in self._search(tags, "RUNNING") if _is_abandoned(run)]

    def _search(self, tags: Mapping[str, str], status: str | None = None, most: int = 1000) -> list[Run]:
        clauses = [f"tags.`{name}` = '{value}'" for name, value in tags.items()]
        clauses += [f"attributes.status = '{status}'"] if status else []
        order = ["attributes.start_time DESC"]
        return list(self._client.search_runs([self._experiment_id], " and ".join(clauses), 1, most, order))

    @contextmanager
    def _answering(self) -> Iterator[None]:
        try:
            yield
        except HalfstepError:
            raise
        except Exception as error:  # MLflow passes on whatever its store's driver raises
            raise TrackingError(
                f"the tracking store {self._shown_uri} cannot be used ({first_line(error)}); "
                "check tracking.uri and MLFLOW_TRACKING_URI, and that the server runs"
            ) from error


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


def _is_abandoned(run: Run) -> bool:
    described = Described.from_tags(str(run.info.run_name), run.data.tags)
    folder: Path = original_root() / run.data.tags.get(origin.FOLDER_TAG, ".")
    return locking.is_free(described.writer, folder)
