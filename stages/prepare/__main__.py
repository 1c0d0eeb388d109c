"""`python -m stages.prepare`: packs images into arrays in `data/prepared/`."""

from __future__ import annotations

from stages import files, params
from stages.errors import cli_entry
from stages.locking import stage_lock
from stages.prepare.pipeline import prepare
from stages.prepare.reports import conflicts_line, summary_line
from stages.stats.sample_size import number_of_verdicts, too_few_images
from stages.tracking import run_logging
from stages.tracking.tracker import Tracker


@cli_entry
def main() -> None:
    """Prepares the images that `params.yaml` names, and prints a summary."""
    settings = params.load()
    with stage_lock("prepare"):
        with Tracker(settings.tracking).run(run_logging.preparation(), settings) as run:
            info = prepare(settings.data, directory=files.PREPARED)
            run_logging.log_preparation(run, files.PREPARED, files.verify_manifest(files.PREPARED))
        print(summary_line(info))
        if conflicts := conflicts_line(files.PREPARED):
            print(f"prepare: {conflicts}")
    train = settings.train
    verdicts = number_of_verdicts(len(train.variants), len(settings.profile.inference_batch_sizes))
    too_few = too_few_images(info.images["test"], settings.compare.quality_margin, len(train.seeds), verdicts)
    if too_few is not None and not info.synthetic:
        print(f"prepare: {too_few}")


if __name__ == "__main__":
    raise SystemExit(main())
