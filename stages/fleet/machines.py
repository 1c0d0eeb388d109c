"""`data/fleet/<machine>/`: what `python -m stages.fleet profile` brought home from each machine."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from stages import files
from stages.errors import CorruptFileError, DataError, HalfstepError
from stages.machine import fingerprint
from stages.params import Params
from stages.results.artifact import Document
from stages.results.comparison import Comparison

COMPARISON, ENVIRONMENT, PROVENANCE = "comparison.json", "environment.json", "provenance.json"
NAMES = (COMPARISON, ENVIRONMENT, PROVENANCE)
# Parameters that change no result. All others must be the same on all machines.
_WITHOUT_EFFECT = (
    "tracking.",
    "fleet.",
    "train.checkpoint_every",
    "train.require_gpu",
    "compare.gate",
)


class Provenance(Document):
    """What a machine measured.

    Attributes:
        commit: of the checkout.
        changes: sha256 of the changes to tracked files; None without changes.
        prepared: sha256 of `data/prepared/manifest.json`.
        comparison: sha256 of `comparison.json`.
        params: the parameters that change results, by dotted name.
        host: name of the machine.
        versions: of what ran the stages, beside those in `environment.json`.
    """

    VERSION: ClassVar[int] = 1

    commit: str
    changes: str | None = None
    prepared: str
    comparison: str
    params: dict[str, Any]
    host: str
    versions: dict[str, str]


@dataclass(frozen=True)
class Machine:
    """The results of one machine; `digest` is that of its fingerprint, and the name of its folder."""

    digest: str
    comparison: Comparison
    provenance: Provenance

    @property
    def device(self) -> str:
        """Name of the device that TensorFlow trains on there."""
        return str(self.comparison.environment["device"])


def result_params(params: Params) -> dict[str, Any]:
    """The parameters that change results, by dotted name, as JSON."""
    found = _flat(params.model_dump(mode="json"), "")
    return {name: value for name, value in found.items() if not name.startswith(_WITHOUT_EFFECT)}


def _flat(values: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found


def write_machine(contents: Mapping[str, bytes]) -> Path:
    """Writes the files of a machine, by name, to its folder, which is returned.

    Raises:
        CorruptFileError: they do not belong together.
        DataError: they cannot be written.
    """
    staged = files.FLEET / ".new"
    for name in NAMES:
        with files.atomic_path(staged / name) as path:
            path.write_bytes(contents[name])
    digest = fingerprint.digest(fingerprint.read(staged / ENVIRONMENT))
    _read(staged, digest)
    folder = files.FLEET / digest
    shutil.rmtree(folder, ignore_errors=True)
    return staged.rename(folder)


def read_machines() -> tuple[Machine, ...]:
    """The results of all machines, sorted by device, which were measured alike.

    Raises:
        DataError: there is no machine.
        HalfstepError: a line for each folder whose files cannot be used; if there is none, a line for each thing in
            which the machines differ although they must not.
    """
    found = sorted(files.FLEET.iterdir()) if files.FLEET.is_dir() else []
    folders = [folder for folder in found if folder.is_dir() and not folder.name.startswith(".")]
    if not folders:
        raise DataError(f"{files.FLEET} has no machine: run `python -m stages.fleet profile`")
    machines: list[Machine] = []
    lines: list[str] = []
    for folder in folders:
        try:
            machines.append(_read(folder, folder.name))
        except HalfstepError as error:
            lines.append(str(error))
    if lines := lines or differences(machines):
        raise HalfstepError(*lines)
    return tuple(sorted(machines, key=lambda machine: (machine.device, machine.digest)))


def _read(folder: Path, digest: str) -> Machine:
    for name in NAMES:
        if not (folder / name).is_file():
            raise DataError(f"{folder / name} is missing: run `{files.command_of(folder)}`")
    provenance = Provenance.read(folder / PROVENANCE)
    if files.sha256_file(folder / COMPARISON) != provenance.comparison:
        raise _damaged(folder / COMPARISON, "its sha256 differs")
    comparison = Comparison.read(folder / COMPARISON)
    environment = fingerprint.read(folder / ENVIRONMENT)
    if comparison.environment != environment or fingerprint.digest(environment) != digest:
        raise _damaged(folder, "its files are of different machines")
    return Machine(digest, comparison, provenance)


def _damaged(path: Path, why: str) -> CorruptFileError:
    return CorruptFileError(f"{path} is damaged ({why}): remove it and run `{files.command_of(path)}`")


def differences(machines: Sequence[Machine]) -> list[str]:
    """A line for each thing that must be the same on all machines and is not."""
    origins = [machine.provenance for machine in machines]
    found = [
        _line("the commit", machines, [origin.commit[:12] for origin in origins]),
        _line(
            "the digest of changes to tracked files",
            machines,
            [origin.changes and origin.changes[:12] for origin in origins],
        ),
        _line("the digest of data/prepared", machines, [origin.prepared[:12] for origin in origins]),
    ]
    names = sorted({name for origin in origins for name in origin.params})
    found += [_line(name, machines, [origin.params.get(name) for origin in origins]) for name in names]
    return [line for line in found if line is not None]


def _line(label: str, machines: Sequence[Machine], values: Sequence[Any]) -> str | None:
    """Which machines have which value; None if all have the same."""
    by_value: dict[str, list[str]] = {}
    for machine, value in zip(machines, values, strict=True):
        by_value.setdefault("none" if value is None else str(value), []).append(machine.digest)
    if len(by_value) == 1:
        return None
    groups = "; ".join(f"{value} on {', '.join(digests)}" for value, digests in by_value.items())
    return (
        f"{files.FLEET}: {label} differs between the machines ({groups}): measure them alike with "
        "`python -m stages.fleet profile`, or remove the folders of some"
    )
