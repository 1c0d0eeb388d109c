"""One training as a stage: trains, writes the results, and logs as it goes."""

from __future__ import annotations

from pathlib import Path

import stages.quiet  # noqa: F401  before TensorFlow
from stages import dataset, files
from stages.params import Params
from stages.tracking import objects, views
from stages.tracking.runs import Tracker
from stages.train.callbacks import Epoch, epoch_line, verbosity
from stages.train.results import write_results
from stages.train.training import train


def run_stage(settings: Params, variant: str, seed: int) -> None:
    """Trains, writes `data/train/<variant>-<seed>/`, and logs as it goes. A numerical failure is a result."""
    tracker = Tracker(settings.tracking)
    prepared = dataset.open_prepared()
    described = views.training(variant, seed)
    directory = files.train_dir(variant, seed)
    with tracker.run(described, settings) as run:
        objects.log_dataset(run, prepared, settings.data.source)

        def log_epoch(row: Epoch) -> None:
            run.metrics(row.metrics(), step=row.epoch)

        show = () if verbosity() else (epoch_line(described.name, settings.train.epochs),)
        entry = settings.variants[variant]
        trained = train(prepared, settings.model, settings.train, entry, seed, receivers=(log_epoch, *show))
        digest = write_results(trained, prepared.test.labels, directory)
        if not trained.failure:
            objects.log_model(run, trained.model, prepared)
        views.log_training(run, directory, prepared.classes, prepared.test.labels, digest)
    _say(described.name, directory)


def _say(name: str, directory: Path) -> None:
    metrics = files.read_json(directory / "metrics.json")
    if metrics["status"] == "failed":
        again = f"`dvc repro -f -s train@{directory.name}`"
        print(f"{name}: failed: {metrics['reason']}; it is left out of the comparison; {again} tries it again")
    else:
        print(f"{name}: test accuracy {metrics['test_accuracy']:.4f}, {metrics['train_time_s']:.1f} s")
