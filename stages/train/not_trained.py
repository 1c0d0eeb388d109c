"""The stage without a training (`train.epochs: 0`): only the speed is compared. Does not import TensorFlow."""

from __future__ import annotations

from stages import files
from stages.inputs.snapshot import Snapshot
from stages.machine import fingerprint
from stages.params import Params
from stages.results.training import TrainingMetrics, write_not_trained
from stages.tracking import run_logging
from stages.tracking.tracker import Tracker


def run_stage(settings: Params, variant: str, seed: int, inputs: Snapshot | None = None) -> None:
    """Writes to `data/train/<variant>-<seed>/` that nothing was trained, logs a run that says so, and prints one line.

    Raises:
        DataError: there are no prepared data.
        CorruptFileError: they were changed after they were written.
    """
    tracker, identity = Tracker(settings.tracking), run_logging.training(variant, seed)
    metrics = TrainingMetrics(
        status="not_trained",
        batch_size=settings.train.batch_size,
        data_sha256=files.verify_manifest(files.PREPARED),
        environment=fingerprint.trained_on(),
    )
    directory = files.train_dir(variant, seed)
    with tracker.run(identity, settings) as run:
        if inputs:
            inputs.require_unchanged()
        run_logging.log_not_trained(run, directory, write_not_trained(directory, metrics))
    print(f"{identity.name}: not trained (train.epochs is 0); the comparison is of speed only")
