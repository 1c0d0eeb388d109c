"""`halfstep judge train.py`: judges a training in any folder, in a workspace of its own below `.halfstep/judge`.

The workspace is a DVC repository with the pipeline, in a git repository of its own, so that experiments work in it.
Nothing else in the folder is changed, and git there shows nothing.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from halfstep.cli import cli_entry
from halfstep.errors import CommandError, GateError, WorkspaceError
from halfstep.params.reading import PARAMS_FILE
from halfstep.results.comparison import COMPARISON, Comparison
from halfstep.system import files
from halfstep.system.commands import dvc, git
from halfstep.system.imports import search_path, template
from halfstep.workspace import (
    copy_plots,
    edits_of,
    parameters,
    parser_of,
    split_at_dashes,
    values_of,
    write_pipeline,
)

_WRITTEN = files.WORK_DIR / PARAMS_FILE  # as this program wrote it, to know what was edited since
_STORE = "sqlite:///mlflow.db"  # of the workspace, also where MLFLOW_TRACKING_URI names the user's own
_AUTHOR = ("-c", "user.name=halfstep", "-c", "user.email=halfstep@localhost", "-c", "commit.gpgsign=false")
_STDERR = 2


@cli_entry
def main() -> None:
    """Entry point: makes the workspace, sets its parameters, and runs the pipeline there.

    Raises:
        ParameterError: an argument or a parameter is not allowed.
        WorkspaceError: the workspace cannot be made, or a stage failed; it says so above.
        GateError: the comparison does not pass `compare.gate`.
    """
    known, own = split_at_dashes(sys.argv[1:])
    arguments = _arguments(known)
    here = Path.cwd()
    workspace = here / files.JUDGE
    values = {"tracking.uri": _STORE, **dict(values_of(arguments, own, here, workspace))}
    edited = edits_of(workspace / PARAMS_FILE, workspace / _WRITTEN)
    edits = {key: value for key, value in edited.items() if key not in values}
    text = parameters(values | edits)  # before anything is made or changed
    if edits:
        print(f"judge: edits of {files.JUDGE / PARAMS_FILE} stay in force: {', '.join(edits)}", file=sys.stderr)
    _make(workspace)
    files.write_text(workspace / PARAMS_FILE, text)
    files.write_text(workspace / _WRITTEN, parameters(values))
    decides = [text for text in known if text != "--json"]  # which says only how the answer is printed
    files.write_json(workspace / files.JUDGE_CALL, {"known": decides, "own": own})
    _run(workspace, to_stderr=arguments.json)
    shutil.copyfile(workspace / files.REPORT, here / files.JUDGE_REPORT)
    if arguments.json:
        print((workspace / COMPARISON).read_text(encoding="utf-8"), end="")
    else:
        print(f"The same command again does what an edit requires. The workspace: {files.JUDGE}")


def _arguments(known: Sequence[str]) -> argparse.Namespace:
    described = "Judges a training in any folder: is lower precision faster, at the same quality?"
    parser = parser_of("judge", described, "%(prog)s [options] WHAT [-- arguments of the script]")
    parser.add_argument("--json", action="store_true", help="print comparison.json alone; the rest to standard error")
    arguments = parser.parse_args(known)
    if [arguments.what, arguments.module, arguments.images].count(None) != 2:
        parser.error("name one thing to judge: a script, -m MODULE, module:function, or --images FOLDER")
    return arguments


def _make(workspace: Path) -> None:
    """Makes the workspace, with a first commit; git outside of it ignores it. Of an older release it is renewed."""
    workspace.mkdir(parents=True, exist_ok=True)
    ignored = workspace.parent / ".gitignore"
    if not ignored.exists():
        files.write_text(ignored, "*\n")
    is_new = not (workspace / ".dvc" / "config").is_file()
    try:
        if is_new:
            git("init", "--quiet", folder=workspace)
            dvc("init", "--force", folder=workspace)
        for name in (".dvcignore", ".gitignore"):
            shutil.copyfile(template(name), workspace / name)
        write_pipeline(workspace)
        copy_plots(workspace)
        if is_new:
            shutil.copyfile(template(PARAMS_FILE), workspace / PARAMS_FILE)
            for key, value in (("analytics", "false"), ("check_update", "false"), ("autostage", "true")):
                dvc("config", f"core.{key}", value, folder=workspace)  # without autostage DVC tells what to add to git
            git("add", "--all", folder=workspace)
            git(*_AUTHOR, "commit", "--quiet", "--message", "The pipeline", folder=workspace)
    except CommandError as error:
        raise WorkspaceError(f"{workspace}: {error}; remove the folder and run the command again") from error


def _run(workspace: Path, *, to_stderr: bool) -> None:
    began_s = time.time()
    variables = search_path() | {"PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}
    command = [sys.executable, "-m", "dvc", "repro"]
    done = subprocess.run(
        command, cwd=workspace, env=os.environ | variables, stdout=_STDERR if to_stderr else None, check=False
    )
    if done.returncode == 0:
        return
    result = workspace / COMPARISON
    if result.is_file() and result.stat().st_mtime >= began_s and Comparison.read(result).gate == "failed":
        raise GateError("compare.gate: the comparison above does not pass")
    raise WorkspaceError(
        f"the pipeline ended with status {done.returncode}, as shown above; what is finished is kept: "
        "run this command again where a line says `dvc repro`"
    )
