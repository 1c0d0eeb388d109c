"""A result: the comparison of one machine, study and occasion, without traces, as a file that others can read."""

from __future__ import annotations

import getpass
import json
import platform
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, Field, ValidationError

from halfstep.errors import HalfstepError, one_line
from halfstep.machine import fingerprint
from halfstep.results.artifact import SCHEMA_VERSION, Document
from halfstep.results.comparison import Comparison
from halfstep.words.text import percent_text

NAME = r"^[a-z][a-z0-9-]*$"
OCCASION = r"^[A-Za-z0-9][A-Za-z0-9.-]{0,39}$"


class GalleryError(HalfstepError):
    """A study, a result or an argument that cannot be used."""

    exit_status = 2


class Result(Document):
    """A study on a machine, on one occasion.

    Attributes:
        study, occasion: names.
        date: the day, as in ISO 8601.
        commit: that was measured; `dirty` if tracked files differed from it.
        halfstep: version of this project; those of the libraries are in the environment of the comparison.
        machine: identifies the machine and its libraries.
        parameters_sha256: identifies the parameters of the study.
        seconds: that it took, trainings and the start of processes included.
        load_cores: share of a core that another program took on purpose; None without.
        comparison: as in `data/compare/comparison.json`.
    """

    VERSION: ClassVar[int] = 1

    study: Annotated[str, Field(pattern=NAME)]
    occasion: Annotated[str, Field(pattern=OCCASION)]
    date: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\d$")]
    commit: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]
    dirty: bool
    halfstep: Annotated[str, Field(pattern=r"^[0-9A-Za-z.+]{1,40}$")]
    machine: Annotated[str, Field(pattern=r"^[0-9a-f]{12}$")]
    parameters_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    seconds: Annotated[float, Field(ge=0)]
    load_cores: Annotated[float, Field(gt=0, le=1)] | None = None
    comparison: Comparison

    def as_json(self) -> dict[str, Any]:
        """The file's content, with the schema version of the comparison."""
        return super().as_json() | {"comparison": self.comparison.as_json()}

    @property
    def device(self) -> str:
        """Name of the processor."""
        return str(self.comparison.environment["device"])

    @property
    def place(self) -> Path:
        """The file, in the folder of all results."""
        return Path(self.machine) / f"{self.study}-{self.occasion}.json"


class _Machine(BaseModel):
    """What is read of the description of a machine."""

    device: str
    cpu: dict[str, Any]
    gpus: list[dict[str, Any]]
    versions: dict[str, str]
    settings: dict[str, str]


@dataclass(frozen=True)
class Results:
    """What was read: results that can be shown, and a line for each file that cannot."""

    shown: tuple[Result, ...]
    left_out: tuple[str, ...]

    def of(self, machine: str, study: str) -> list[Result]:
        """The occasions of a study on a machine, the oldest first."""
        return [result for result in self.shown if (result.machine, result.study) == (machine, study)]


def environment() -> dict[str, Any]:
    """This machine, without settings that name a file, this host or this user."""
    return _without_names(fingerprint.fingerprint())


def _without_names(machine: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in machine["settings"].items() if not _is_private(str(value))}
    return {key: value for key, value in machine.items() if key != "sha256"} | {"settings": kept}


def _is_private(text: str) -> bool:
    names = {platform.node(), getpass.getuser()} - {""}
    return any(mark in text for mark in "/\\") or any(re.search(rf"\b{re.escape(name)}\b", text) for name in names)


def machine_id(described: Mapping[str, Any]) -> str:
    """Identifies a machine by what `environment` returns."""
    return fingerprint.digest(described)


def public(comparison: Comparison) -> Comparison:
    """The comparison without what only the machine that made it needs."""
    setup = comparison.setup and comparison.setup.model_copy(update={"manifests": {}})
    changes = {"environment": _without_names(comparison.environment), "setup": setup}
    return comparison.model_copy(update=changes)


def version() -> str:
    """Version of this project, as pyproject.toml has it: it need not be installed."""
    try:
        text = Path("pyproject.toml").read_text(encoding="utf-8")
        return re.findall(r'^version = "(.+)"$', text, flags=re.MULTILINE)[0]
    except (OSError, IndexError):
        return metadata.version("halfstep")


def read(check: Callable[[Result], None], *folders: Path) -> Results:
    """All results below some folders. Of two files of the same place, that in the first folder counts.

    A result that `check` refuses with a ValueError is left out, like a file that cannot be read.
    """
    shown, left_out, seen = list[Result](), list[str](), set[Path]()
    for folder in folders:
        for path in sorted(folder.glob("*/*.json")):
            if (place := path.relative_to(folder)) in seen:
                continue
            seen.add(place)
            try:
                shown.append(read_one(path, check))
            except GalleryError as error:
                left_out.append(str(error))
    return Results(tuple(sorted(shown, key=lambda result: (result.date, result.occasion))), tuple(left_out))


def read_one(path: Path, check: Callable[[Result], None]) -> Result:
    """Reads and checks a file.

    Raises:
        GalleryError: `check` refuses it, it has another schema version, or is not where its content belongs.
    """
    try:
        result = Result.model_validate(_current(_content(path)))
        _check(result, path)
        check(result)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise _left_out(path, f"{where}: {first['msg']}") from None
    except (OSError, LookupError, ValueError) as error:
        raise _left_out(path, str(error)) from None
    return result


def _left_out(path: Path, why: str) -> GalleryError:
    return GalleryError(f"{path.as_posix()} is left out: {one_line(why, 300)}")


def _content(path: Path) -> Any:
    def refuse(name: str) -> None:
        raise ValueError(f"{name} is not a number of JSON")

    return json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)


def _current(content: Any) -> dict[str, Any]:
    """The content without its versions, which are checked: in another one, the same name may mean something else."""
    comparison = content.get("comparison") if isinstance(content, dict) else None
    if not isinstance(comparison, dict):
        raise ValueError("it has no comparison")
    _bring_up_to_date(comparison)
    wanted = (("the file", content, Result), ("its comparison", comparison, Comparison))
    for what, part, kind in wanted:
        if (schema_version := part.pop(SCHEMA_VERSION, None)) != kind.VERSION:
            raise ValueError(
                f"{what} has schema version {schema_version!r} and this release reads {kind.VERSION}: measure again"
            )
    return content


def _bring_up_to_date(comparison: dict[str, Any]) -> None:
    """Leaves out what a comparison of schema 3 or 5 has that later ones lack.

    Their accounts were tested in another way.
    """
    version = comparison.get(SCHEMA_VERSION)
    if version in (3, 5) and isinstance(candidates := comparison.get("candidates"), dict):
        for candidate in filter(lambda value: isinstance(value, dict), candidates.values()):
            for key in ("account", "why", "operations", *(("same_weights",) if version == 3 else ())):
                candidate.pop(key, None)
            for key in ("quality", "quality_same_weights"):
                (candidate.get(key) or {}).pop("sample_size", None)
        comparison[SCHEMA_VERSION] = Comparison.VERSION


def _check(result: Result, path: Path) -> None:
    _Machine.model_validate(result.comparison.environment)
    if machine_id(result.comparison.environment) != result.machine:
        raise ValueError("machine is not the one that the comparison describes")
    if path.parts[-2:] != result.place.parts:
        raise ValueError(f"its content belongs to {result.place.as_posix()}")


def described(results: Collection[Result]) -> Iterator[str]:
    """What a reader must know of results of one machine: processor, libraries, commits, and load on purpose.

    Args:
        results: at least one; the newest one says what the machine is.
    """
    ordered = sorted(results, key=lambda one: (one.date, one.occasion))
    newest = ordered[-1]
    machine = newest.comparison.environment
    yield newest.device
    if sets := machine["cpu"].get("instruction_sets"):
        yield f"instructions {', '.join(sets)}"
    versions = machine["versions"]
    yield ", ".join(f"{name} {versions[name]}" for name in ("python", "tensorflow", "keras") if name in versions)
    commits = list(dict.fromkeys(one.commit[:10] for one in ordered))
    yield f"halfstep {newest.halfstep}, {'commit' if len(commits) == 1 else 'commits'} {', '.join(commits)}"
    loads = {one.occasion: one.load_cores for one in ordered if one.load_cores}
    for name, cores in loads.items():
        yield f"one of the runs ({name}) was made while another program took {percent_text(cores, 0)} of one core"
