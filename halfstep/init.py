"""`halfstep init`: the pipeline as files of your own repository. Nothing there is overwritten."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

from halfstep.cli import cli_entry
from halfstep.errors import CommandError, WorkspaceError
from halfstep.params.reading import PARAMS_FILE
from halfstep.system import files
from halfstep.system.commands import dvc, git
from halfstep.system.imports import template
from halfstep.workspace import (
    PIPELINE,
    add_lines,
    copy_plots,
    parameters,
    parser_of,
    split_at_dashes,
    values_of,
    write_pipeline,
)

_RESULTS = (files.PREPARED, files.TRAIN, files.PROFILE, files.SERVE, files.COMPARE, files.KEYS)
_OWN_STORE = f"sqlite:///{files.WORK_DIR}/mlflow.db"
_MLFLOW = ("mlflow.db", "mlruns")


@cli_entry
def main() -> None:
    """Entry point: writes the files, and says what is there now.

    Raises:
        ParameterError: an argument or a parameter is not allowed.
        WorkspaceError: a file of the pipeline exists, or DVC cannot be initialised.
    """
    described = "Adds the pipeline to your own repository: dvc.yaml, params.yaml, lines of .gitignore."
    parser = parser_of("init", described, "%(prog)s [options] [WHAT] [-- arguments of the script]")
    parser.add_argument("--into", type=Path, default=Path(), metavar="FOLDER", help="where there is a pipeline already")
    given, own = split_at_dashes(sys.argv[1:])
    arguments = parser.parse_args(given)
    here, folder = Path.cwd(), Path.cwd() / arguments.into
    _require_free(folder)
    values = dict(values_of(arguments, own, here, folder))
    if any((folder / name).exists() for name in _MLFLOW):
        values.setdefault("tracking.uri", _OWN_STORE)
    text = parameters(values)
    folder.mkdir(parents=True, exist_ok=True)
    root = _dvc_root(folder)
    write_pipeline(folder)
    files.write_text(folder / PARAMS_FILE, text)
    (folder / files.WORK_DIR).mkdir(exist_ok=True)
    copy_plots(root)
    ignored = template(".gitignore").read_text(encoding="utf-8").splitlines()
    add_lines(folder / ".gitignore", [line for line in ignored if line.startswith("/") and ".dvc" not in line])
    add_lines(folder / ".dvcignore", template(".dvcignore").read_text(encoding="utf-8").splitlines())
    _tell(arguments.into, values)


def _require_free(folder: Path) -> None:
    existing = [str(name) for name in (PIPELINE, PARAMS_FILE, *_RESULTS) if (folder / name).exists()]
    if existing:
        raise WorkspaceError(
            f"{existing[0]} exists in {folder}, and is not overwritten: give the pipeline a folder of its own, as in "
            "`halfstep init --into precision`; DVC takes several pipelines in a repository"
        )


def _dvc_root(folder: Path) -> Path:
    """The root of the DVC repository of a folder, which becomes one if it is in none."""
    with suppress(CommandError):
        return (folder / dvc("root", folder=folder).strip()).resolve()
    try:
        top = Path(git("rev-parse", "--show-toplevel", folder=folder))
    except CommandError:
        print("There is no git repository here: `dvc repro` works, and experiments (`dvc exp run`) need one.")
        options = ["--no-scm"]
    else:
        options = [] if top.resolve() == folder.resolve() else ["--subdir"]
    try:
        dvc("init", *options, folder=folder)
    except CommandError as error:
        raise WorkspaceError(f"{folder}: {error}") from error
    return folder


def _tell(into: Path, values: dict[str, object]) -> None:
    place = into / PIPELINE
    set_here = (
        f" ({', '.join(values)} set)" if values else " (which trains the digits: name a script to judge your own)"
    )
    print(f"Written: {place}, {into / PARAMS_FILE}{set_here}, and lines of .gitignore and .dvcignore.")
    go = "" if into == Path() else f"cd {into} && "
    print(f"Next: `{go}dvc repro`. `dvc exp run -S train.batch_size=128` tries a change once git has a commit of them.")
