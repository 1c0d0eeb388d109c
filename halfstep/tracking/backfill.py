"""Logs, from the files, the runs that the tracking store does not have.

`compare` needs it for two cases: a stage that DVC restored from its cache or a remote has logged nothing, and a run is
incomplete if its tracking server failed.
"""

from __future__ import annotations

from halfstep.errors import TrackingError
from halfstep.params.schema import Params
from halfstep.results.serving import Export, ServedArm, read_served
from halfstep.results.task import TASK_INFO, TaskInfo
from halfstep.results.training import finished_scores, read_metrics, saved_model
from halfstep.system import files
from halfstep.tracking import run_logging
from halfstep.tracking.active_run import ActiveRun
from halfstep.tracking.tracker import RunIdentity, Tracker


class IncompleteRunError(TrackingError):
    """The store failed while a run was logged, and the run has printed why."""


def backfill(tracker: Tracker, settings: Params) -> list[str]:
    """Logs the missing runs of `prepare`, of every training, of every measured variant and of what was served.

    Returns:
        Identifiers of all these runs.

    Raises:
        DataError: a result is missing.
        CorruptFileError: a file is damaged.
        TrackingError: the store cannot be used.
        IncompleteRunError: the store failed while a run was logged.
    """
    runs = [preparation(tracker, settings)]
    runs += [
        training(tracker, settings, name, seed) for name in settings.train.variants for seed in settings.train.seeds
    ]
    measured = [name for name in settings.train.variants if files.profile_dir(name).is_dir()]
    runs += [profiling(tracker, settings, name) for name in measured]
    runs += serving(tracker, settings)
    tracker.close_abandoned()
    return runs


def preparation(tracker: Tracker, settings: Params) -> str:
    """The identifier of the run of `prepare`, which is logged unless the store has it."""
    digest = files.verify_manifest(files.PREPARED)

    def log(run: ActiveRun) -> None:
        run_logging.log_preparation(run, files.PREPARED, digest)

    return _found_or_logged(tracker, settings, run_logging.preparation(), digest, log)


def training(tracker: Tracker, settings: Params, variant: str, seed: int) -> str:
    """The identifier of the run of a training, which is logged unless the store has it."""
    directory = files.train_dir(variant, seed)
    digest = files.verify_manifest(directory)

    def log(run: ActiveRun) -> None:
        if read_metrics(variant, seed).not_trained:
            run_logging.log_not_trained(run, directory, digest)
            return
        run.artifact(saved_model(directory), "model")
        run_logging.log_training(run, directory, digest)

    return _found_or_logged(tracker, settings, run_logging.training(variant, seed), digest, log)


def profiling(tracker: Tracker, settings: Params, variant: str) -> str:
    """The identifier of the run of the measurements of a variant, which is logged unless the store has it."""
    directory = files.profile_dir(variant)
    digest = files.verify_manifest(directory)

    def log(run: ActiveRun) -> None:
        scores = finished_scores(variant, settings.train.seeds)
        run_logging.log_profile(run, directory, TaskInfo.read(TASK_INFO).score_name, scores, digest)

    return _found_or_logged(tracker, settings, run_logging.profiling(variant), digest, log)


def serving(tracker: Tracker, settings: Params) -> list[str]:
    """The identifiers of the runs of what was served, which are logged unless the store has them."""
    served = read_served()
    if served is None:
        return []
    digest, run_ids = files.sha256_file(files.SERVE / files.MANIFEST), []  # the files were checked as they were read
    for exports, arm in served.rows:
        variant, name = exports[0].variant, exports[0].format if arm is None else arm.name

        def log(run: ActiveRun, exports: list[Export] = exports, arm: ServedArm | None = arm) -> None:
            run_logging.log_served(run, exports, arm, digest)

        run_ids.append(_found_or_logged(tracker, settings, run_logging.serving(variant, name), digest, log))
    return run_ids


def _found_or_logged(
    tracker: Tracker, settings: Params, identity: RunIdentity, digest: str, log: run_logging.Logger
) -> str:
    run_id = tracker.find(digest, identity)
    if run_id is not None:
        return run_id
    with tracker.run(identity, settings) as run:
        log(run)
    if run.is_incomplete:
        raise IncompleteRunError("a run is incomplete")  # with the next run, the store would fail again
    return run.run_id
