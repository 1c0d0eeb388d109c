"""Sees to it that every run a comparison talks about is in the tracking store.

A stage that DVC restores from its cache, or pulls from another machine, logs nothing: its run is made from its files.
So is the rest of a run whose server went away before it had ended.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stages import files
from stages.params import Params
from stages.tracking import views
from stages.tracking.live import LiveRun
from stages.tracking.runs import Described, Tracker


def complete(tracker: Tracker, settings: Params) -> list[str]:
    """Logs from the files what the store does not hold.

    Returns:
        Identifiers of the runs of `prepare`, of every training and of every variant that was measured.

    Raises:
        DataError: a result is missing.
        CorruptFileError: a file is not what was written.
    """
    runs = [_preparation(tracker, settings)]
    runs += [
        _training(tracker, settings, name, seed) for name in settings.train.variants for seed in settings.train.seeds
    ]
    measured = [name for name in settings.train.variants if files.profile_dir(name).is_dir()]
    runs += [_profiling(tracker, settings, name) for name in measured]
    tracker.close_abandoned()
    return runs


def test_accuracies(variant: str, seeds: Sequence[int]) -> list[float]:
    """Test accuracy of each training of a variant that finished, in the order of the seeds.

    Raises:
        DataError: a training is missing.
        CorruptFileError: its numbers are not what was written.
    """
    metrics = [files.read_json(files.checked(files.train_dir(variant, seed), "metrics.json")) for seed in seeds]
    return [row["test_accuracy"] for row in metrics if row["status"] == "finished"]


def _preparation(tracker: Tracker, settings: Params) -> str:
    digest = files.check_manifest(files.PREPARED)

    def log(run: LiveRun) -> None:
        views.log_preparation(run, files.PREPARED, digest)

    return _found_or_logged(tracker, settings, views.preparation(), digest, log)


def _training(tracker: Tracker, settings: Params, variant: str, seed: int) -> str:
    directory = files.train_dir(variant, seed)
    digest = files.check_manifest(directory)

    def log(run: LiveRun) -> None:
        views.log_history(run, directory)
        run.artifact(directory / "model.keras", "model")
        classes, labels = _test_set()
        views.log_training(run, directory, classes, labels, digest)

    return _found_or_logged(tracker, settings, views.training(variant, seed), digest, log)


def _profiling(tracker: Tracker, settings: Params, variant: str) -> str:
    directory = files.profile_dir(variant)
    digest = files.check_manifest(directory)

    def log(run: LiveRun) -> None:
        views.log_profile(run, directory, test_accuracies(variant, settings.train.seeds), digest)

    return _found_or_logged(tracker, settings, views.profiling(variant), digest, log)


def _found_or_logged(tracker: Tracker, settings: Params, described: Described, digest: str, log: views.Logger) -> str:
    found = tracker.find(digest, described)
    if found is not None:
        return found
    with tracker.run(described, settings, run_id=tracker.unfinished(described, settings)) as run:
        log(run)
    return run.run_id


def _test_set() -> tuple[list[str], np.ndarray]:
    info = files.read_json(files.PREPARED / "info.json")
    return info["classes"], np.load(files.PREPARED / "test_labels.npy", allow_pickle=False)
