"""Results of machines below `data/fleet/`, written by the code that writes those of a real one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stages import files
from stages.compare.judge import document_of
from stages.fleet.machines import COMPARISON, ENVIRONMENT, PROVENANCE, Provenance, result_params, write_machine
from stages.params import Params
from tests.small_study import ENVIRONMENT as DESCRIPTION
from tests.small_study import SmallStudy


def measure(project: SmallStudy, device: str, *, speed_only: bool = False, **origin: Any) -> Path:
    """Compares what `project` holds as if `device` had measured it. `origin` are fields of `Provenance`."""
    files.write_json(files.ENVIRONMENT_FILE, files.with_checksum(DESCRIPTION | {"device": device}))
    found = document_of(project.compare_speed_only() if speed_only else project.compare())
    home = project.root / "home"
    found.write(home / COMPARISON)
    values = {
        "commit": "c" * 40,
        "prepared": files.sha256_file(files.PREPARED / files.MANIFEST),
        "comparison": files.sha256_file(home / COMPARISON),
        "params": result_params(Params()),
        "host": device.split()[0].lower(),
        "versions": {"dvc": "3.67.1"},
    }
    Provenance(**(values | origin)).write(home / PROVENANCE)
    contents = {name: (home / name).read_bytes() for name in (COMPARISON, PROVENANCE)}
    return write_machine(contents | {ENVIRONMENT: files.ENVIRONMENT_FILE.read_bytes()})
