"""`gallery/studies.yaml`: what is measured, as edits of the default parameters."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from halfstep.errors import one_line
from halfstep.params.loading import parse
from halfstep.params.reading import dotted, parse_tree
from halfstep.params.schema import Params
from halfstep.system import files
from halfstep.words.policies import FLOAT16, FLOAT32, POLICIES
from tools.gallery import results
from tools.gallery.results import NAME, GalleryError, Result, Results

STUDIES = Path("gallery/studies.yaml")
MEASURED = files.DATA / "gallery"  # what was measured here; ignored by git and DVC
PUBLISHED = Path("gallery/results")
# What the user decides for all studies: where runs are stored, and how a fleet trains.
_OF_THE_USER = ("tracking", "fleet")


class Study(BaseModel):
    """One row of the gallery.

    Attributes:
        name: for commands and files.
        title: for people.
        shows: what it is there for, in one line.
        minutes: that it is expected to take on 2 cores.
        in_readme: whether it is one of the rows of the README.
        parameters: its edits of the default parameters, by dotted names.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: Annotated[str, Field(pattern=NAME, max_length=40)]
    title: str
    shows: str
    minutes: Annotated[float, Field(gt=0)]
    in_readme: bool = False
    parameters: dict[str, Any]

    def settings(self, environment: Mapping[str, Any], occasion: str) -> Params:
        """The parameters of the study on a machine, without those that the user decides for all studies.

        Raises:
            ParameterError: they are invalid: one line for each.
        """
        tree: dict[str, Any] = {"variants": _default_variants()}
        # the page puts the occasions together: with a seed of its own each is judged by itself
        own: dict[str, Any] = {"profile.occasion": occasion, "profile.seed": zlib.crc32(occasion.encode()) >> 1}
        own |= {"serve.formats": []}  # the studies are about precision
        for name, value in {**self.parameters, **own}.items():
            *sections, key = name.split(".")
            mapping = tree
            for section in sections:
                mapping = mapping.setdefault(section, {})
            mapping[key] = value
        params = parse(json.dumps(tree), name=f"{STUDIES}: {self.name}")
        listed = [name for name in params.train.variants if _is_computed(params.variants[name].policy, environment)]
        return params.model_copy(update={"train": params.train.model_copy(update={"variants": tuple(listed)})})

    def lowers_precision(self, variant: str) -> bool:
        """Whether a variant computes in fewer bits than float32, and differs from the baseline in nothing else."""
        entry = self.parameters.get(f"variants.{variant}") or _default_variants().get(variant) or {"policy": variant}
        return POLICIES[entry["policy"]].compute.bits < FLOAT32.bits

    def sha256(self, environment: Mapping[str, Any]) -> str:
        """Identifies the edits and what is compared on a machine; the same on each occasion."""
        compared = self.settings(environment, "any").train.variants
        text = json.dumps([self.parameters, compared], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    studies: list[Study]


def _default_variants() -> dict[str, Any]:
    return {name: entry.model_dump(mode="json", exclude_none=True) for name, entry in Params().variants.items()}


def _is_computed(policy: str, environment: Mapping[str, Any]) -> bool:
    """Whether a machine has instructions for float16, where a policy needs them.

    Without them, each number is converted to float32 and back: one study more would say the same.
    """
    if POLICIES[policy].compute is not FLOAT16:
        return True
    gpus = [float(gpu.get("compute_capability") or 0) for gpu in environment["gpus"]]
    if gpus:
        assert FLOAT16.tensor_cores_from is not None, "it has tensor cores"
        return any(
            capability >= FLOAT16.tensor_cores_from or capability in FLOAT16.arithmetic_ratios for capability in gpus
        )
    return bool(set(environment["cpu"].get("instruction_sets", ())) & FLOAT16.cpu_ratios.keys())


def read(path: Path = STUDIES) -> dict[str, Study]:
    """All studies by name, in the order of the file.

    Raises:
        GalleryError: the file is missing, or a study is invalid.
    """
    try:
        studies = _File.model_validate(parse_tree(path.read_text(encoding="utf-8"), str(path))).studies
    except (OSError, UnicodeDecodeError) as error:
        raise GalleryError(f"{path} cannot be read ({error}): run from the root of the project") from None
    except ValidationError as error:
        first = error.errors()[0]
        text = f"{dotted(first['loc'])}: {first['msg']}, and is {first['input']!r}"
        raise GalleryError(f"{path}: {one_line(text, 300)}") from None
    names = [study.name for study in studies]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise GalleryError(f"{path}: {', '.join(twice)} is given twice: rename one")
    return {study.name: study for study in studies}


def check_of(studies: Mapping[str, Study]) -> Callable[[Result], None]:
    """What refuses results of other parameters than their study has now."""

    def check(result: Result) -> None:
        study = studies.get(result.study)
        if study is None or study.sha256(result.comparison.environment) != result.parameters_sha256:
            raise ValueError(f"{result.study} is not a study with these parameters any more: measure again")

    return check


def read_results(studies: Mapping[str, Study], *folders: Path) -> Results:
    """All results of these studies below some folders. Those that `check_of` refuses are left out."""
    return results.read(check_of(studies), *folders)


def chosen(studies: Mapping[str, Study], names: Sequence[str]) -> list[Study]:
    """The studies of these names, or all.

    Raises:
        GalleryError: there is no study of a name.
    """
    if unknown := [name for name in names if name not in studies]:
        raise GalleryError(f"--study {one_line(unknown[0], 80)}: it must be one of {', '.join(studies)}")
    return [studies[name] for name in names or studies]


def overrides(workspace: Params, settings: Params) -> Iterator[str]:
    """What must be set so that an experiment has a study's parameters, whatever params.yaml says, as Hydra reads it."""
    for section in (name for name in Params.model_fields if name not in _OF_THE_USER):
        before, after = (getattr(params, section) for params in (workspace, settings))
        if section == "variants":
            needed = {name: after[name] for name in settings.train.variants}
            pairs = [(name, before.get(name), entry) for name, entry in needed.items()]
        else:
            pairs = [(name, getattr(before, name), getattr(after, name)) for name in type(after).model_fields]
        for name, old, new in pairs:
            if old != new:
                yield from _set(f"{section}.{name}", new)


def _set(name: str, value: Any) -> Iterator[str]:
    plain = value.model_dump(mode="json") if isinstance(value, BaseModel) else value
    if isinstance(plain, dict):
        yield f"++{name}=null"  # a mapping would keep the keys that it has now
    yield f"++{name}={_hydra(plain)}"


def _hydra(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{key}:{_hydra(item)}' for key, item in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_hydra, value))}]"
    return json.dumps(value, ensure_ascii=False)
