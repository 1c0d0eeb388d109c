"""`python -m stages.fleet.measurement`: measures a node in a clone, with the trainings of the fleet."""

from __future__ import annotations

import argparse
import socket
from importlib import metadata
from pathlib import Path

from stages import files, params
from stages.cli import cli_entry
from stages.fleet import node
from stages.fleet.machines import PROVENANCE, Provenance, result_params
from stages.fleet.unfinished import unfinished_trainings
from stages.params import Params
from stages.results.comparison import COMPARISON
from stages.telling import MEASURES, tell

PROVENANCE_FILE = files.WORK_DIR / PROVENANCE
COLLECTED: tuple[Path, ...] = (COMPARISON, files.ENVIRONMENT_FILE, PROVENANCE_FILE)
_PACKAGES = ("dvc", "mlflow", "ray")


def main() -> int:
    """Entry point on a node."""
    parser = argparse.ArgumentParser(prog="python -m stages.fleet.measurement", description=__doc__)
    parser.add_argument("--commit", required=True, help="the head's commit")
    parser.add_argument("--changes", required=True, help="sha256 of its tracked changes; empty without")
    arguments = parser.parse_args()
    return cli_entry(lambda: measure(arguments.commit, arguments.changes or None))()


def measure(commit: str, changes: str | None) -> None:
    """Fetches the data and the trainings, measures, compares, and pushes the results.

    Raises:
        StepError: a command failed, or a training would have to run.
    """
    settings = params.load()
    node.prepare_clone()
    if missing := unfinished_trainings(settings.train):
        raise node.StepError(f"{', '.join(missing)} would have to run here, and `profile` trains nothing")
    _compare(settings)
    _write_provenance(settings, commit, changes)
    node.dvc("push", "--run-cache", "profile", "compare")


def _compare(settings: Params) -> None:
    """`dvc repro --pull`. That `compare.gate` is not passed on this machine is a result."""
    COMPARISON.unlink(missing_ok=True)  # that of an earlier measurement, which DVC restores if it still holds
    try:
        if MEASURES not in node.dvc("repro", "--pull"):
            tell("was measured before")
    except node.StepError:
        if not (settings.compare.gate and COMPARISON.is_file()):
            raise


def _write_provenance(settings: Params, commit: str, changes: str | None) -> None:
    Provenance(
        commit=commit,
        changes=changes,
        prepared=files.sha256_file(files.PREPARED / files.MANIFEST),
        comparison=files.sha256_file(COMPARISON),
        params=result_params(settings),
        host=socket.gethostname(),
        versions={name: metadata.version(name) for name in _PACKAGES},
    ).write(PROVENANCE_FILE)


if __name__ == "__main__":
    raise SystemExit(main())
