"""`python -m stages.prepare`: images become packed arrays in `data/prepared/`."""

from __future__ import annotations

from stages import files, params
from stages.errors import explained
from stages.locking import only_writer
from stages.margins import too_few_images
from stages.prepare.pipeline import prepare
from stages.tracking import views
from stages.tracking.runs import Tracker


@explained
def main() -> None:
    """Prepares the images that `params.yaml` names, and says in one line what came out."""
    settings = params.load()
    with only_writer("prepare"):
        with Tracker(settings.tracking).run(views.preparation(), settings) as run:
            prepared = prepare(settings.data, directory=files.PREPARED)
            views.log_preparation(run, files.PREPARED, files.check_manifest(files.PREPARED))
        print(prepared.summary)
    too_few = too_few_images(prepared.images["test"], settings.compare.accuracy_margin, len(settings.train.seeds))
    if too_few is not None and not prepared.synthetic:
        print(f"prepare: {too_few}")


if __name__ == "__main__":
    raise SystemExit(main())
