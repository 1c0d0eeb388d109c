"""Digests of halfstep's own code, by stage: what a stage's result depends on, found by imports.

A digest is over the modules that compute the result and over all that they import. It does not begin at the page of
the stage in `stages/`, which reads parameters, takes the lock and tells MLflow.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from halfstep.inputs.closure import Imports, Module, needed_files
from halfstep.system.files import sha256_file
from halfstep.system.imports import ROOT

# The modules that compute what a stage writes. Those of which the imports tell nothing are named beside them: what runs
# in a process of its own, and rules that fill in or check parameters.
STARTS: Mapping[str, tuple[str, ...]] = {
    "prepare": (
        "prepare/images/pipeline",
        "prepare/trying",
        "prepare/inspection",
    ),
    "train": ("train/training", "train/saving", "train/not_trained", "params/derived"),
    "profile": (
        "profile/stage",
        "machine/gpus/driver",
        "machine/gpus/selection",
        "params/derived",
        "params/measures",
    ),
    "serve": (
        "serve/stage",
        "serve/exporting",
        "serve/worker",
        "machine/gpus/driver",
        "machine/gpus/selection",
        "params/derived",
        "params/measures",
    ),
    "compare": (
        "compare/document",
        "compare/metrics",
        "compare/report/html",
        "compare/report/tables",
        "results/occasions",
        "params/margin",
        "params/measures",
        "words/text",
    ),
}
# What a stage imports and its result does not depend on, with the reason. A folder ends with a slash.
WITHOUT_EFFECT: Mapping[str, str] = {
    "halfstep/__init__.py": "what a signal does",
    "halfstep/cli.py": "how a program begins and ends",
    "halfstep/errors.py": "messages",
    "halfstep/inputs/": "how the files in data/keys are computed, on which the stages depend",
    "halfstep/machine/": "how data/environment.json is computed, on which `profile` depends; messages",
    "halfstep/params/": "how params.yaml is read: dvc.yaml lists the parameters, and STARTS the rules with an effect",
    "halfstep/words/console.py": "how wide tables are printed",
    "halfstep/words/text.py": "words in messages; of `compare`, which writes them, it is one of STARTS",
    "halfstep/system/": "how processes start and end, and how files are written, not what is in them",
    "halfstep/tracking/": "MLflow is a view of the results",
}


def code_digest(stage: str, root: Path = ROOT) -> str:
    """Digest of the names and contents of the code that a stage's result depends on.

    Args:
        stage: a key of `STARTS`.
        root: the folder that contains `halfstep`.
    """
    return of_contents(contents(stage, root))


def contents(stage: str, root: Path = ROOT) -> dict[str, str]:
    """The sha256 of each file of `code_files`, in the order of their names."""
    return _contents(code_files(stage, root))


def keys(root: Path = ROOT) -> dict[str, dict[str, str]]:
    """By stage, what its file in `data/keys` contains."""
    with Imports() as imports:
        return {stage: key(_contents(code_files(stage, root, imports))) for stage in STARTS}


def _contents(paths: Mapping[str, Path]) -> dict[str, str]:
    return {name: sha256_file(path) for name, path in sorted(paths.items())}


def key(contents: Mapping[str, str]) -> dict[str, str]:
    """What the file in `data/keys` with the name of a stage contains, if its code does."""
    return {"sha256": of_contents(contents)}


def code_files(stage: str, root: Path = ROOT, imports: Imports | None = None) -> dict[str, Path]:
    """The files of `code_digest` by their paths from `root`, with the templates beside them."""
    names = [("halfstep", *start.split("/")) for start in STARTS[stage]]
    start = [Module(name, root.joinpath(*name).with_suffix(".py")) for name in names]
    paths = needed_files(start, "halfstep", root, left_out=tuple(WITHOUT_EFFECT), imports=imports)
    folders = {path.parent for path in paths.values()}
    templates = [path for folder in folders for path in folder.glob("templates/*")]
    return paths | {path.relative_to(root).as_posix(): path for path in templates}


def of_files(named: Iterable[tuple[str, Path]]) -> str:
    """Digest of the names and contents of files, in this order."""
    return of_contents({name: sha256_file(path) for name, path in named})


def of_contents(contents: Mapping[str, str]) -> str:
    """The same, by the sha256 of each file."""
    lines = [f"{name}\0{sha256}\n" for name, sha256 in contents.items()]
    return hashlib.sha256("".join(lines).encode()).hexdigest()
