"""`python -m stages.compare`: the verdict on every candidate, from the files of the other stages."""

from __future__ import annotations

from halfstep.system.supervision import supervise

supervise(__name__)  # before anything large is imported

from halfstep.system.imports import quick_imports

with quick_imports():
    from halfstep.cli import cli_entry, run
    from halfstep.compare import stage
    from halfstep.compare.gate import check_gate
    from halfstep.inputs.snapshot import Snapshot
    from halfstep.params import loading
    from halfstep.results.task import resolved
    from halfstep.system.locking import stage_lock
from halfstep.system.telling import never_silent


@cli_entry
def main() -> None:
    """Compares, writes `data/compare/`, logs, and prints the table. The gate is checked last.

    Raises:
        GateError: the comparison does not pass `compare.gate`.
    """
    inputs = Snapshot("compare")
    settings = resolved(loading.load())
    with stage_lock("compare"), never_silent("compare"):
        comparison = stage.compare_and_track(settings, inputs)
    if settings.compare.gate:
        check_gate(comparison)


if __name__ == "__main__":
    raise SystemExit(run(main))
