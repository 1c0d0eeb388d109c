"""`python -m stages.profile`: measures step time, latency and memory of every variant, and traces it."""

from __future__ import annotations

from halfstep.system.supervision import supervise

supervise(__name__)  # before anything large is imported

from contextlib import ExitStack

from halfstep.cli import cli_entry, run
from halfstep.inputs.snapshot import Snapshot
from halfstep.params import loading
from halfstep.system.fork_server import start_server, stop_servers
from halfstep.system.imports import quick_imports
from halfstep.system.locking import machine_lock, stage_lock
from halfstep.system.telling import never_silent


@cli_entry
def main() -> None:
    """Measures the variants without a failed training, writes `data/profile/`, and logs one run per variant."""
    inputs = Snapshot("profile")
    settings = loading.load()
    with stage_lock("profile"), machine_lock(), never_silent("profile"), ExitStack() as stack:
        stack.callback(stop_servers)
        for name in settings.train.variants:  # they import TensorFlow while this process imports the rest
            entry = settings.variants[name]
            start_server(entry.variables, python=entry.python)
        with quick_imports():
            from halfstep.compare.explain.intervention import intervention_of
            from halfstep.profile import stage
        stage.run(settings, inputs, intervention_of)


if __name__ == "__main__":
    raise SystemExit(run(main))
