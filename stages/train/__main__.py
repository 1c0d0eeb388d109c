"""`python -m stages.train --variant float32 --seed 0`: trains one variant with one seed."""

from __future__ import annotations

import argparse
from pathlib import Path

import stages.quiet  # noqa: F401  before TensorFlow
from stages import dataset, files, params
from stages.errors import ParameterError, explained
from stages.tracking import objects, views
from stages.tracking.runs import Tracker
from stages.train.callbacks import Epoch, epoch_line, verbosity
from stages.train.results import write_results
from stages.train.training import train


@explained
def main() -> None:
    """Trains, writes `data/train/<variant>-<seed>/`, and logs as it goes. A numerical failure is a result."""
    arguments = _arguments()
    settings = params.load()
    if arguments.variant not in settings.variants:
        known = ", ".join(settings.variants)
        raise ParameterError(f"--variant is '{arguments.variant}'; allowed are the entries of variants: {known}")
    tracker = Tracker(settings.tracking)
    prepared = dataset.open_prepared()
    described = views.training(arguments.variant, arguments.seed)
    directory = files.train_dir(arguments.variant, arguments.seed)
    with tracker.run(described, settings) as run:
        objects.log_dataset(run, prepared, settings.data.source)

        def log_epoch(row: Epoch) -> None:
            run.metrics(row.metrics(), step=row.epoch)

        show = () if verbosity() else (epoch_line(described.name, settings.train.epochs),)
        trained = train(
            prepared,
            settings.model,
            settings.train,
            settings.variants[arguments.variant],
            arguments.seed,
            receivers=(log_epoch, *show),
        )
        digest = write_results(trained, prepared.test.labels, directory)
        if not trained.failure:
            objects.log_model(run, trained.model, prepared)
        views.log_training(run, directory, prepared.classes, prepared.test.labels, digest)
    _say(described.name, directory)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m stages.train", description=__doc__)
    parser.add_argument("--variant", required=True, help="an entry of `variants`")
    parser.add_argument("--seed", required=True, type=int)
    return parser.parse_args()


def _say(name: str, directory: Path) -> None:
    metrics = files.read_json(directory / "metrics.json")
    if metrics["status"] == "failed":
        again = f"`dvc repro -f -s train@{directory.name}`"
        print(f"{name}: failed: {metrics['reason']}; it is left out of the comparison; {again} tries it again")
    else:
        print(f"{name}: test accuracy {metrics['test_accuracy']:.4f}, {metrics['train_time_s']:.1f} s")


if __name__ == "__main__":
    raise SystemExit(main())
