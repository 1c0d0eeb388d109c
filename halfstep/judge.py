"""`halfstep judge train.py`: judges a training in any folder, in a workspace of its own below `.halfstep/judge`.

The workspace is a DVC repository with the pipeline, in a git repository of its own, so that experiments work in it.
Nothing else in the folder is changed, and git there shows nothing.
"""

from __future__ import annotations

import argparse
import io
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from halfstep import files, params
from halfstep.cli import cli_entry
from halfstep.commands import dvc, git
from halfstep.errors import ParameterError, WorkspaceError
from halfstep.imports import search_path, stages_package, template

REPORT = files.WORK_DIR / "report.html"
_TEMPLATE = ("dvc.yaml", "params.yaml", ".dvcignore", ".gitignore", ".dvc/config", ".dvc/plots")
_AUTHOR = ("-c", "user.name=halfstep", "-c", "user.email=halfstep@localhost", "-c", "commit.gpgsign=false")


@cli_entry
def main() -> None:
    """Entry point: makes the workspace, sets its parameters, and runs the pipeline there.

    Raises:
        ParameterError: an argument or a parameter is not allowed.
        WorkspaceError: the workspace cannot be made, or a stage failed; it says so above.
    """
    arguments, own = _arguments(sys.argv[1:])
    here = Path.cwd()
    values = dict(_values(arguments, own, here))
    workspace = here / files.JUDGE
    path = workspace / "params.yaml"
    text = _with_values(template("params.yaml"), values)  # the command line decides, whatever an earlier one said
    params.parse(text)  # before anything is made or changed
    if not (workspace / ".dvc" / "config").is_file():
        _make(workspace)
    files.write_text(path, text)
    variables = search_path() | {"PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}
    command = [sys.executable, "-m", "dvc", "repro"]
    if status := subprocess.run(command, cwd=workspace, env=os.environ | variables, check=False).returncode:
        raise WorkspaceError(f"the pipeline ended with status {status}, as shown above; what is finished is kept")
    shutil.copyfile(workspace / files.REPORT, here / REPORT)
    print(f"The report: {REPORT}. The workspace: {files.JUDGE}; run the same command again after an edit.")


def _arguments(given: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """The arguments, and after `--` those of the script."""
    at = given.index("--") if "--" in given else len(given)
    parser = argparse.ArgumentParser(
        prog="halfstep judge", usage="%(prog)s [options] WHAT [-- arguments of the script]"
    )
    parser.add_argument(
        "what", nargs="?", metavar="WHAT", help="a training script, or module:function that returns a Task"
    )
    parser.add_argument("--images", metavar="FOLDER", help="a folder with a folder of pictures for each class")
    parser.add_argument(
        "--model", metavar="NAME", help="of --images, such as resnet20 or keras.applications.MobileNetV3Small"
    )
    parser.add_argument("--variants", metavar="A,B", help="the baseline and what is compared with it")
    parser.add_argument("--minutes", type=float, help="of timing, at most; repeats that are begun are finished")
    parser.add_argument("--speed-only", action="store_true", help="train nothing, and say nothing of the quality")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="any parameter, by its dotted name"
    )
    arguments = parser.parse_args(given[:at])
    if (arguments.what is None) == (arguments.images is None):
        parser.error("name one thing to judge: a script, module:function, or --images FOLDER")
    return arguments, list(given[at + 1 :])


def _values(arguments: argparse.Namespace, own: list[str], here: Path) -> Iterator[tuple[str, Any]]:
    """The parameters that differ from the defaults, by their dotted names; paths are relative to the workspace."""
    if arguments.images is not None:
        yield "data.source", "folder"
        yield "data.path", _from_workspace(here, arguments.images, "--images")
        if arguments.model is not None:
            yield "model.name", arguments.model
    elif ":" in arguments.what:
        yield "task.name", arguments.what
        yield "task.path", _from_workspace(here, ".", "the folder")
    else:
        yield "task.script", _from_workspace(here, arguments.what, "the script")
        yield "task.arguments", own
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


def _from_workspace(here: Path, name: str, what: str) -> str:
    path = here / Path(name).expanduser()
    if not path.exists():
        raise ParameterError(f"{what} {name} does not exist in {here}")
    return os.path.relpath(path, here / files.JUDGE)


def _with_values(path: Path, values: dict[str, Any]) -> str:
    """The text of a parameter file with these values; its comments stay."""
    round_trip = YAML(typ="rt")
    round_trip.width = 1000
    document = round_trip.load(path.read_text(encoding="utf-8"))
    for key, value in values.items():
        *folders, last = key.split(".")
        section = document
        for folder in folders:
            section = section.get(folder) if isinstance(section, dict) else None
        if not isinstance(section, dict) or last not in section:
            raise ParameterError(f"{key} is no parameter: `halfstep params` lists them")
        section[last] = value
    stream = io.StringIO()
    round_trip.dump(document, stream)
    return stream.getvalue()


def _make(workspace: Path) -> None:
    """Makes the workspace, with a first commit; git outside of it ignores it."""
    workspace.mkdir(parents=True, exist_ok=True)
    ignored = workspace.parent / ".gitignore"
    if not ignored.exists():
        files.write_text(ignored, "*\n")
    git("init", "--quiet", folder=workspace)
    dvc("init", "--quiet", "--force", folder=workspace)
    for name in _TEMPLATE:
        source, target = template(name), workspace / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, dirs_exist_ok=True)
        else:
            shutil.copyfile(source, target)
    pipeline = workspace / "dvc.yaml"
    files.write_text(pipeline, pipeline.read_text(encoding="utf-8").replace(" -m stages.", f" -m {stages_package()}."))
    dvc("config", "core.autostage", "true", folder=workspace)  # else DVC tells what to add to git
    git("add", "--all", folder=workspace)
    git(*_AUTHOR, "commit", "--quiet", "--message", "The pipeline", folder=workspace)


if __name__ == "__main__":
    raise SystemExit(main())
