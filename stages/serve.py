"""`python -m stages.serve`: exports the trained weights, and times and tests each format."""

from __future__ import annotations

from halfstep.system.supervision import supervise

supervise(__name__)  # before anything large is imported

from contextlib import ExitStack

from halfstep.cli import cli_entry, run
from halfstep.inputs.snapshot import Snapshot
from halfstep.params import loading
from halfstep.serve.records import EXPORTING
from halfstep.system.fork_server import start_server, stop_servers
from halfstep.system.imports import quick_imports
from halfstep.system.locking import machine_lock, stage_lock
from halfstep.system.telling import never_silent


@cli_entry
def main() -> None:
    """Writes `data/serve/`, and logs one run for each variant and format; an empty table without `serve.formats`."""
    inputs = Snapshot("serve")
    settings = loading.load()
    with stage_lock("serve"):
        if not settings.serve.exported:
            from halfstep.results.serving import nothing_served

            nothing_served()
            return
        with machine_lock(), never_silent("serve"), ExitStack() as stack:
            stack.callback(stop_servers)
            # it imports TensorFlow while this process imports the rest
            baseline = settings.variants[settings.compare.baseline]
            start_server(baseline.variables, EXPORTING, baseline.python)
            with quick_imports():
                from halfstep.serve import stage
            stage.run(settings, inputs)


if __name__ == "__main__":
    raise SystemExit(run(main))
