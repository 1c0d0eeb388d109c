"""The stage without a training (`train.epochs: 0`, `trained: false`): only speed. Does not import TensorFlow."""

from __future__ import annotations

from typing import Literal

from halfstep.inputs.snapshot import Snapshot
from halfstep.machine import fingerprint
from halfstep.params.schema import Params
from halfstep.results.task import TASK_INFO, TaskInfo
from halfstep.results.training import TrainingMetrics, write_not_trained
from halfstep.system import files
from halfstep.tracking import run_logging
from halfstep.tracking.active_run import ActiveRun
from halfstep.tracking.tracker import Tracker

_SPEED_ONLY = "the comparison is of speed only"


def run_stage(settings: Params, variant: str, seed: int, inputs: Snapshot | None = None) -> None:
    """Writes to `data/train/<variant>-<seed>/` that nothing was trained, logs a run that says so, and prints one line.

    Raises:
        DataError: there are no prepared data.
        CorruptFileError: they were changed after they were written.
    """
    identity, info = run_logging.training(variant, seed), TaskInfo.read(TASK_INFO)
    own = f"variants.{variant}.trained is false" if settings.train.epochs else None
    directory, metrics = files.train_dir(variant, seed), _metrics(settings, variant, "not_trained", own)
    with Tracker(settings.tracking).run(identity, settings) as run:
        if inputs:
            inputs.require_unchanged()
        run_logging.log_not_trained(run, directory, write_not_trained(directory, metrics))
    why, what = own or info.speed_only or "train.epochs is 0", "its speed is judged" if own else _SPEED_ONLY
    print(f"{identity.name}: not trained ({why}); {what}")


def run_failed(settings: Params, variant: str, seed: int, reason: str, inputs: Snapshot | None = None) -> None:
    """Writes and logs that a variant cannot be trained, which is a result: others go on. Errors as of `run_stage`."""
    with Tracker(settings.tracking).run(run_logging.training(variant, seed), settings) as run:
        leave_out(run, settings, variant, seed, reason, inputs)


def leave_out(
    run: ActiveRun, settings: Params, variant: str, seed: int, reason: str, inputs: Snapshot | None = None
) -> None:
    """As `run_failed`, into a run that has begun."""
    directory, metrics = files.train_dir(variant, seed), _metrics(settings, variant, "failed", reason=reason)
    if inputs:
        inputs.require_unchanged()
    run_logging.log_training(run, directory, write_not_trained(directory, metrics))
    print(f"{run_logging.training(variant, seed).name}: left out: {reason}")


def _metrics(
    settings: Params, variant: str, status: Literal["failed", "not_trained"], reason: str | None = None
) -> TrainingMetrics:
    return TrainingMetrics(
        status=status,
        reason=reason,
        batch_size=settings.variants[variant].applied_to(settings.train).batch_size,
        data_sha256=files.verify_manifest(files.PREPARED),
        environment=fingerprint.trained_on(fingerprint.versions()),
    )
