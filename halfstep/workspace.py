"""Folders in which the pipeline runs outside of a clone: its files, and the parameters for what is judged."""

from __future__ import annotations

import argparse
import io
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from halfstep.errors import ParameterError
from halfstep.params import loading
from halfstep.params.reading import PARAMS_FILE
from halfstep.params.rules import did_you_mean
from halfstep.params.schema import TaskParams
from halfstep.system import files, interpreters
from halfstep.system.imports import stages_package, template

PIPELINE = "dvc.yaml"
PLOTS = ".dvc/plots"
_SCRIPT = "the script"


def parser_of(program: str, description: str, usage: str) -> argparse.ArgumentParser:
    """A parser for what is judged, and how."""
    parser = argparse.ArgumentParser(prog=f"halfstep {program}", description=description, usage=usage)
    parser.add_argument(
        "what", nargs="?", metavar="WHAT", help="a training script, or module:function that returns a Task"
    )
    parser.add_argument("-m", dest="module", metavar="MODULE", help="a training that `python -m MODULE` starts")
    parser.add_argument("--images", metavar="FOLDER", help="a folder with a folder of pictures for each class")
    parser.add_argument(
        "--model", metavar="NAME", help="of --images, such as resnet20 or keras.applications.MobileNetV3Small"
    )
    parser.add_argument(
        "--python", metavar="PYTHON", help="that runs your code, such as .venv/bin/python; else a near one is found"
    )
    parser.add_argument("--variants", metavar="A,B", help="the baseline and what is compared with it")
    parser.add_argument("--minutes", type=float, help="of timing, at most; repeats that are begun are finished")
    parser.add_argument("--speed-only", action="store_true", help="train nothing, and say nothing of the quality")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="any parameter, by its dotted name"
    )
    return parser


def split_at_dashes(given: Sequence[str]) -> tuple[list[str], list[str]]:
    """The arguments, and after `--` those of the script."""
    at = list(given).index("--") if "--" in given else len(given)
    return list(given[:at]), list(given[at + 1 :])


def values_of(arguments: argparse.Namespace, own: Sequence[str], here: Path, folder: Path) -> Iterator[tuple[str, Any]]:
    """Yields the parameters that differ from the defaults, by their dotted names.

    Args:
        arguments: of `parser_of`.
        own: arguments of the script.
        here: to which the paths among the arguments are relative.
        folder: to which they are relative in `params.yaml`: the one of the pipeline.

    Raises:
        ParameterError: a path does not exist, or `--set` is not understood.
    """
    yield from _interpreter(arguments, here, folder)
    if arguments.images is not None:
        yield "data.source", "folder"
        yield "data.path", _path_from(folder, here, arguments.images, "--images")
        if arguments.model is not None:
            yield "model.name", arguments.model
    elif arguments.what is not None and ":" in arguments.what:
        yield "task.name", arguments.what
        yield "task.path", _path_from(folder, here, ".", "the folder")
    elif arguments.what is not None or arguments.module is not None:
        if arguments.what is None:
            script = f"-m {arguments.module}"
            if not TaskParams(script=script, folder=str(here)).script_path.is_file():
                raise ParameterError(f"the module {arguments.module} does not exist in {here}, or in src there")
            yield "task.script", script
        else:
            yield "task.script", _path_from(folder, here, arguments.what, _SCRIPT)
        yield "task.folder", _path_from(folder, here, ".", "the folder")  # it runs where its user stands
        yield "task.arguments", list(own)
        yield "train.epochs", None
        yield "train.batch_size", None
    if arguments.variants is not None:
        names = arguments.variants.split(",")
        yield "train.variants", names
        yield "compare.baseline", names[0]
    if arguments.minutes is not None:
        yield "profile.max_seconds", 60 * arguments.minutes
    if arguments.speed_only:
        yield "train.epochs", 0
    for text in arguments.set:
        key, equals, value = text.partition("=")
        if not equals:
            raise ParameterError(f"--set {text}: write it as KEY=VALUE, such as --set train.epochs=3")
        try:
            yield key, YAML(typ="safe").load(value)
        except YAMLError:
            raise ParameterError(f"--set {text}: the value is not YAML") from None


def _interpreter(arguments: argparse.Namespace, here: Path, folder: Path) -> Iterator[tuple[str, Any]]:
    """The Python that runs the user's code: the one that is named, or where halfstep's has no TensorFlow a near one."""
    if arguments.python is not None:
        path = _path_from(folder, here, arguments.python, "--python")
        if problem := interpreters.problem_with(str(here / Path(arguments.python).expanduser())):
            raise ParameterError(f"--python is '{arguments.python}', {problem}")
        yield "task.python", path
    elif not interpreters.has_tensorflow():
        near = interpreters.neighbour((here / (arguments.what or ".")).parent)
        if near is None:
            raise ParameterError(interpreters.NO_TENSORFLOW)
        print(f"your code runs in {near}, which has TensorFlow (--python names another one)", file=sys.stderr)
        yield "task.python", os.path.relpath(near, folder)


def _path_from(folder: Path, here: Path, name: str, what: str) -> str:
    path = here / Path(name).expanduser()
    if not path.exists():
        scripts = [str(item.relative_to(here)) for item in path.parent.glob("*.py") if item.is_relative_to(here)]
        raise ParameterError(f"{what} {name} does not exist in {here}{did_you_mean(name, scripts)}")
    if what == _SCRIPT and path.is_dir():
        raise ParameterError(
            f"{name} is a folder: name the script in it that trains, or, for a folder of pictures with a folder for "
            f"each class, --images {name}"
        )
    return os.path.relpath(path, folder)


def parameters(values: Mapping[str, Any]) -> str:
    """The text of a parameter file: the defaults, with their comments, and other values by dotted name.

    Raises:
        ParameterError: a parameter does not exist, or a value is not allowed.
    """
    round_trip = YAML(typ="rt")
    round_trip.width = 1000
    document = round_trip.load(template(PARAMS_FILE).read_text(encoding="utf-8"))
    for key, value in values.items():
        *sections, last = key.split(".")
        section = document
        for name in sections:
            section = section.setdefault(name, {})
            if not isinstance(section, dict):
                raise ParameterError(f"{key}: {name} is not a section: `halfstep params` lists the parameters")
        section[last] = value
    stream = io.StringIO()
    round_trip.dump(document, stream)
    loading.parse(stream.getvalue())
    return stream.getvalue()


def edits_of(path: Path, written: Path) -> dict[str, Any]:
    """The values of a parameter file that were changed or added since it was written, by dotted name.

    Args:
        path: the file.
        written: what was written then.

    Raises:
        ParameterError: the file is not YAML.
    """
    if not path.is_file() or not written.is_file():
        return {}
    try:
        before, now = (dict(_flat(YAML(typ="safe").load(file.read_text(encoding="utf-8")))) for file in (written, path))
    except (YAMLError, UnicodeDecodeError, AttributeError):
        raise ParameterError(f"{path} is not YAML of parameters: mend it, or remove it") from None
    return {key: value for key, value in now.items() if key not in before or before[key] != value}


def _flat(section: dict[str, Any], name: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in section.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{name}{key}.")
        else:
            yield f"{name}{key}", value


def write_pipeline(folder: Path) -> None:
    """Writes dvc.yaml, whose stages are those of the installed package."""
    text = template(PIPELINE).read_text(encoding="utf-8")
    files.write_text(folder / PIPELINE, text.replace(" -m stages.", f" -m {stages_package()}."))


def copy_plots(dvc_root: Path) -> None:
    """Copies the templates of the plots, where there is none of the same name."""
    for source in sorted(template(PLOTS).iterdir()):
        target = dvc_root / PLOTS / source.name
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)


def add_lines(path: Path, lines: Sequence[str]) -> int:
    """Adds the lines that a file lacks; returns their number."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    missing = [line for line in lines if line not in text.splitlines()]
    if missing:
        text += "\n" if text and not text.endswith("\n") else ""
        files.write_text(path, text + "".join(f"{line}\n" for line in missing))
    return len(missing)
