"""One training as a stage: goes on from its checkpoint, writes the results, and logs as it goes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import stages.quiet  # noqa: F401  before TensorFlow
from stages import dataset, files
from stages.dataset import Prepared
from stages.errors import HalfstepError
from stages.params import Params
from stages.tracking import objects, views
from stages.tracking.live import LiveRun
from stages.tracking.runs import Tracker
from stages.train import checkpoints
from stages.train.callbacks import Epoch, epoch_line, verbosity
from stages.train.checkpoints import Checkpoint, Checkpoints
from stages.train.results import write_results
from stages.train.resuming import Sitting
from stages.train.stopping import Stop
from stages.train.training import Trained, train


def run_stage(settings: Params, variant: str, seed: int) -> None:
    """Trains, writes `data/train/<variant>-<seed>/`, and logs as it goes. A numerical failure is a result.

    A training that was interrupted goes on from its last checkpoint, in the run that it began.
    """
    tracker = Tracker(settings.tracking)
    prepared = dataset.open_prepared()
    directory = files.train_dir(variant, seed)
    key = checkpoints.key_of(settings, variant, seed, prepared.sha256)
    stop = Stop()
    with stop.bounded(), checkpoints.opened(directory.name, key) as kept:
        start = (kept.newest() if kept else None) or Checkpoint()
        described = views.training(variant, seed)
        with tracker.run(described, settings, run_id=start.run_id) as run:
            stop.last_words = lambda: run.end("KILLED")
            if run.run_id != start.run_id:
                objects.log_dataset(run, prepared, settings.data.source)
            _catch_up(run, start, described.name, settings.train.epochs)
            trained = _trained(prepared, settings, variant, seed, run, Sitting(start, _saver(kept, run), stop))
            digest = write_results(trained, prepared.test.labels, directory)
            if not trained.failure:
                objects.log_model(run, trained.model, prepared)
            views.log_training(run, directory, prepared.classes, prepared.test.labels, digest)
        if kept:
            kept.remove()
    _say(described.name, directory)


def _trained(prepared: Prepared, settings: Params, variant: str, seed: int, run: LiveRun, sitting: Sitting) -> Trained:
    def log_epoch(row: Epoch) -> None:
        run.metrics(row.metrics(), step=row.epoch)

    name = views.training(variant, seed).name
    show = () if verbosity() else (epoch_line(name, settings.train.epochs),)
    try:
        return train(
            prepared,
            settings.model,
            settings.train,
            settings.variants[variant],
            seed,
            receivers=(log_epoch, *show),
            sitting=sitting,
            known_to_fit=_known_to_fit(variant),
        )
    except (KeyboardInterrupt, SystemExit):
        if sitting.stop.requested and sitting.save:
            print(f"{name}: interrupted; the next `dvc repro` goes on from here", file=sys.stderr)
        raise


def _saver(kept: Checkpoints | None, run: LiveRun) -> Callable[[Checkpoint], None] | None:
    return None if kept is None else lambda checkpoint: kept.save(replace(checkpoint, run_id=run.run_id))


def _catch_up(run: LiveRun, start: Checkpoint, name: str, epochs: int) -> None:
    """Says where an interrupted training goes on, and logs what was lost with the process that had trained so far."""
    if not start.step:
        return
    print(
        f"{name}: goes on after step {start.step}, in epoch {min(len(start.epochs) + 1, epochs)}/{epochs}", flush=True
    )
    logged = run.logged_steps("epoch_time_s")
    for row in start.epochs:
        if row.epoch not in logged:
            run.metrics(row.metrics(), step=row.epoch)


def _known_to_fit(variant: str) -> int | None:
    """The largest batch that `profile` has found to train; None where it has not looked, or nothing is left of it."""
    try:
        found = files.read_json(files.profile_dir(variant) / "summary.json")["metrics"]["memory/max_batch_size"]
        return int(found)
    except (HalfstepError, LookupError, TypeError, ValueError):
        return None


def _say(name: str, directory: Path) -> None:
    metrics = files.read_json(directory / "metrics.json")
    if metrics["status"] == "failed":
        again = f"`dvc repro -f -s train@{directory.name}`"
        print(f"{name}: failed: {metrics['reason']}; it is left out of the comparison; {again} tries it again")
    else:
        print(f"{name}: test accuracy {metrics['test_accuracy']:.4f}, {metrics['train_time_s']:.1f} s")
