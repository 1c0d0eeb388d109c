"""`python -m stages.prepare`: prepares the data of the task in `data/prepared/`, and checks the task.

With `--layers` it prints the paths of the layers, for `float32_layers`, and changes nothing.
"""

from __future__ import annotations

from halfstep.system.supervision import supervise

supervise(__name__)  # before anything large is imported

from halfstep.system.imports import quick_imports

with quick_imports():
    import argparse

    from halfstep.cli import cli_entry, run
    from halfstep.inputs.snapshot import Snapshot
    from halfstep.params import loading
    from halfstep.prepare import stage
    from halfstep.prepare.kept import kept_if_inputs_change
    from halfstep.system import files
    from halfstep.system.locking import stage_lock
    from halfstep.system.telling import never_silent
    from halfstep.tracking import run_logging
    from halfstep.tracking.tracker import Tracker


@cli_entry
def main() -> None:
    """Prepares the images that `params.yaml` names, or checks a task of the user's own, and prints a summary."""
    parser = argparse.ArgumentParser(prog="stages.prepare", description=__doc__)
    parser.add_argument("--layers", action="store_true", help="only print the path and the class of each layer")
    only_layers = parser.parse_args().layers
    inputs = Snapshot("prepare")
    settings = loading.load()
    if only_layers:
        stage.print_layers(settings)
        return
    with stage_lock("prepare"), never_silent("prepare"):
        with Tracker(settings.tracking).run(run_logging.preparation(), settings) as run:
            with kept_if_inputs_change(settings, inputs) as is_there:
                if not is_there:
                    stage.prepare_task_of(settings)
            run_logging.log_preparation(run, files.PREPARED, files.verify_manifest(files.PREPARED))
        for line in stage.summary(settings):
            print(line)


if __name__ == "__main__":
    raise SystemExit(run(main))
