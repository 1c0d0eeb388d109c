"""`halfstep judge train.py`: judges a training in any folder, in a workspace of its own below `.halfstep/judge`.

The workspace is a DVC repository with the pipeline, in a git repository of its own, so that experiments work in it.
Nothing else in the folder is changed, and git there shows nothing.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from halfstep.cli import cli_entry
from halfstep.compare.ratio_text import ratio_text
from halfstep.compare.report.terminal import answer_text
from halfstep.errors import BusyError, CommandError, GateError, WorkspaceError
from halfstep.params import loading
from halfstep.params.reading import PARAMS_FILE
from halfstep.results.comparison import COMPARISON, Comparison
from halfstep.results.task import long_trainings_s
from halfstep.system import files, overlays, rerun, sealing
from halfstep.system.commands import dvc, git
from halfstep.system.imports import search_path, template
from halfstep.system.locking import holder_of, try_lock
from halfstep.system.supervision import die_with_parent
from halfstep.words.text import TRAIN, hours_text
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
_DVC_SETTINGS = {
    "core.analytics": "false",
    "core.check_update": "false",
    "core.autostage": "true",  # without it DVC tells what to add to git
    "cache.dir": ".dvc/cache",  # of the workspace, where the user has one for all their projects
}
# DVC as its command line, without the lines that say which stages it runs and skips; its errors are printed.
_QUIET_DVC = """
import logging, sys
from dvc.cli import main
from dvc.logger import set_loggers_level
from dvc.ui import ui
ui.enable = lambda: None
with set_loggers_level(logging.WARNING):
    sys.exit(main(sys.argv[1:]))
"""
_DESCRIBED = "Judges a training in any folder: is lower precision faster, at the same quality?"
_EPILOG = """\
example:
  halfstep judge train.py --minutes 2 --set train.epochs=3 -- --data pictures

It trains each variant once, times them in turns for a minute or more, and prints the answer last. Where the trainings
take more than ten minutes, it times first, answers for the speed, and says how to go on: --train then trains, without
the variants that are certainly not fast enough. The report is
.halfstep/report.html; everything else is below .halfstep/judge. An edit and the same command measure only what
changed. Exit status: 0 for an answer, 1 where compare.gate does not pass, 2 where it could not answer.
"""
_STDERR = 2
_LAYERS = Path("/var/tmp")  # noqa: S108  a disk, where /tmp may be memory
_SWITCH = "HALFSTEP_OVERLAYS"
_MOST_LISTED = 50_000
_TRAIN, _ALL = "--train", "--all"
_SPEED_FIRST = {"train.epochs": 0, "serve.formats": []}
_END_S = 5.0  # for processes of a pipeline that was stopped


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
    parameters(values)  # before anything is made or changed
    with _locked(here):
        edited = edits_of(workspace / PARAMS_FILE, workspace / _WRITTEN)
        edits = {key: value for key, value in edited.items() if key not in values}
        asked = values | edits
        parameters(asked)
        if edits:
            print(f"judge: edits of {files.JUDGE / PARAMS_FILE} stay in force: {', '.join(edits)}", file=sys.stderr)
        _make(workspace)
        _write(workspace, values, edits)
        deciding = _with_train(workspace, list(_deciding(known)), own)
        files.write_json(workspace / files.JUDGE_CALL, {"known": deciding, "own": own})
        store = asked["tracking.uri"]
        folders = _folders(arguments, here) if store == _STORE or store.startswith("http") else []
        began_s, later = time.time(), ""
        with _sealed(workspace, here, folders) as dvc_repro:
            repro = partial(_run, workspace=workspace, to_stderr=arguments.json)
            if arguments.again is not None and (workspace / COMPARISON).exists():  # else all of it runs anyway
                repro([*dvc_repro, "-f", "-s", arguments.again])
            long_s = None
            is_whole = _ALL in deciding or asked.get("compare.gate") or arguments.images is not None
            if not is_whole and asked.get("train.epochs") is None:
                repro([*dvc_repro, "prepare"])
                long_s = long_trainings_s(loading.load(workspace / PARAMS_FILE), workspace)
            if long_s is not None:
                _write(workspace, values | _SPEED_FIRST, edits)
                repro(dvc_repro)
                later, untrained = _later(workspace, long_s, deciding, own)
                if _TRAIN in deciding:
                    _write(workspace, values | untrained, edits)
            if long_s is None or _TRAIN in deciding:
                repro(dvc_repro)
    result = workspace / COMPARISON
    if arguments.json:
        print(result.read_text(encoding="utf-8"), end="")
    elif result.stat().st_mtime < began_s:  # `compare` had nothing to do, so it printed nothing
        print(answer_text(Comparison.read(result)))
    if later and _TRAIN not in deciding:
        print(later, file=sys.stderr if arguments.json else sys.stdout)


def _write(workspace: Path, values: Mapping[str, Any], edits: Mapping[str, Any]) -> None:
    """Writes the parameters, and what they are without the user's edits of the file."""
    files.write_text(workspace / PARAMS_FILE, parameters({**values, **edits}))
    files.write_text(workspace / _WRITTEN, parameters(values))


def _with_train(workspace: Path, deciding: list[str], own: Sequence[str]) -> list[str]:
    """The arguments, with `--train` or `--all` where the last call had it and was the same otherwise.

    What was trained counts.
    """
    call = workspace / files.JUDGE_CALL
    before = files.read_json(call) if call.is_file() else {}
    plain = [name for name in deciding if name not in (_TRAIN, _ALL)]
    same = [option for option in (_ALL, _TRAIN) if before == {"known": [*plain, option], "own": list(own)}]
    return [*plain, *([option for option in (_ALL, _TRAIN) if option in deciding] or same)[:1]]


def _later(workspace: Path, long_s: float, deciding: Sequence[str], own: Sequence[str]) -> tuple[str, dict[str, bool]]:
    """After the answer for the speed: what is said of the trainings, and the parameters that leave some of them out.

    A candidate that is certainly not fast enough is not trained: no quality makes it worth having. A line says so.

    Args:
        workspace: with the comparison.
        long_s: seconds of the trainings of all variants.
        deciding, own: the arguments.
    """
    first = Comparison.read(workspace / COMPARISON)
    ratios = {name: item.speedups[TRAIN] for name, item in first.candidates.items() if TRAIN in item.speedups}
    slow = [name for name, ratio in ratios.items() if first.side(ratio) == "below" and not first.is_void(TRAIN)]
    for name in slow:
        print(f"judge: {name} is not trained ({_ALL} trains it): {ratio_text(ratios[name])} as fast", file=sys.stderr)
    seconds = long_s * (1 - len(slow) / (1 + len(first.candidates)))
    command = shlex.join(["halfstep", "judge", *deciding, _TRAIN, *(["--", *own] if own else [])])
    text = (
        f"The accuracy is not measured yet: the trainings take about {hours_text(seconds)}.\n"
        f"`{command}` trains, and keeps what was timed; --set train.epochs=N trains for fewer epochs."
    )
    return text, {f"variants.{name}.trained": False for name in slow}


@contextmanager
def _locked(here: Path) -> Iterator[None]:
    """In the block, no other command judges in this folder.

    Raises:
        BusyError: one does now.
    """
    path = here / files.WORK_DIR / "judge.lock"
    path.parent.mkdir(exist_ok=True)
    ignored = path.parent / ".gitignore"
    if not ignored.exists():
        files.write_text(ignored, "*\n")
    lock = try_lock(path)
    if lock is None:
        raise BusyError(
            f"judge: {here} is being judged by {holder_of(path)}; wait for it or end it: nothing is changed"
        )
    with lock:
        yield


def _arguments(known: Sequence[str]) -> argparse.Namespace:
    parser = parser_of("judge", _DESCRIBED, "%(prog)s [options] WHAT [-- arguments of the script]")
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    parser.add_argument("--json", action="store_true", help="print comparison.json alone; the rest to standard error")
    parser.add_argument(_TRAIN, action="store_true", help="train also where that takes long, what is fast enough")
    parser.add_argument(_ALL, action="store_true", help="train also what is certainly not fast enough, at once")
    parser.add_argument(rerun.AGAIN, metavar="STAGE", help="run profile, serve or another stage again, without an edit")
    arguments, others = parser.parse_known_args(known)
    if others:
        parser.error(
            f"{' '.join(others)}: arguments of the script stand after --, such as `halfstep judge train.py -- "
            f"{' '.join(others)}`; a parameter is set by --set, such as --set train.epochs=3"
        )
    if [arguments.what, arguments.module, arguments.images].count(None) != 2:
        parser.error("name one thing to judge: a script, -m MODULE, module:function, or --images FOLDER")
    return arguments


def _deciding(known: Sequence[str]) -> Iterator[str]:
    """The arguments without those that say how the answer is printed, and what runs again."""
    texts = iter(known)
    for text in texts:
        if text == rerun.AGAIN:
            next(texts, None)
        elif text != "--json" and not text.startswith(f"{rerun.AGAIN}="):
            yield text


def _folders(arguments: argparse.Namespace, here: Path) -> list[Path]:
    """Those of the user: where they stand, and what they name."""
    named = here / (arguments.what or arguments.images or ".")
    return [here, named if named.is_dir() else named.parent]


def _make(workspace: Path) -> None:
    """Makes the workspace, a git repository with a first commit, beside its place, so that a kill leaves no half.

    Its files that belong to the release are renewed.
    """
    is_new = not _has_commit(workspace)
    folder = workspace.with_name(f"{workspace.name}.new") if is_new else workspace
    try:
        if is_new:
            for unfinished in (folder, workspace):  # older releases made it in place
                if not (unfinished / files.DATA).exists():
                    shutil.rmtree(unfinished, ignore_errors=True)
            folder.mkdir()
            git("init", "--quiet", folder=folder)
            dvc("init", folder=folder)
        for name in (".dvcignore", ".gitignore"):
            shutil.copyfile(template(name), folder / name)
        write_pipeline(folder)
        copy_plots(folder)
        if is_new:
            shutil.copyfile(template(PARAMS_FILE), folder / PARAMS_FILE)
            for key, value in _DVC_SETTINGS.items():
                dvc("config", key, value, folder=folder)
            git("add", "--all", folder=folder)
            git(*_AUTHOR, "commit", "--quiet", "--message", "The pipeline", folder=folder)
            folder.rename(workspace)
    except CommandError as error:
        raise WorkspaceError(f"{workspace}: {error}; remove the folder and run the command again") from error


def _has_commit(workspace: Path) -> bool:
    if not (workspace / ".git").is_dir():
        return False
    try:
        return bool(git("rev-parse", "--verify", "--quiet", "HEAD", folder=workspace))
    except CommandError:
        return False


@contextmanager
def _sealed(workspace: Path, here: Path, folders: Sequence[Path]) -> Iterator[list[str]]:
    """Yields the command that runs the pipeline, and says at the end what the user's code would have changed."""
    sealing.undo(workspace)  # what a kill has left
    sealing.forget_changed(workspace)
    before = _listing(here)
    changed = set[str]()
    try:
        with _overlays(workspace, here, folders, changed) as prefix:
            yield [*prefix, sys.executable, "-c", _QUIET_DVC, "repro"]
    finally:
        paths = sorted({*changed, *sealing.changed_paths(workspace)})
        if line := sealing.said(paths, here, files.JUDGE / sealing.WRITTEN):
            print(f"judge: {line}", file=sys.stderr)
        after = _listing(here)
        if before and after and (differing := sorted({name for name, _ in before ^ after})):
            more = f" and {len(differing) - 1} more" if len(differing) > 1 else ""
            print(f"judge: {differing[0]}{more} changed while this ran, by another program", file=sys.stderr)


@contextmanager
def _overlays(workspace: Path, here: Path, folders: Sequence[Path], changed: set[str]) -> Iterator[list[str]]:
    """Yields what to put before a command, so that the user's folders stay as they are, and adds what it changed."""
    unfinished = workspace / files.WORK_DIR / "layers"
    if unfinished.exists():
        overlays.remove(Path(unfinished.read_text()))
    layers = Path(tempfile.mkdtemp(prefix="halfstep-", dir=_LAYERS if os.access(_LAYERS, os.W_OK) else None))
    files.write_text(unfinished, str(layers))
    covered = _covered(folders, layers) if folders and os.environ.get(_SWITCH) != "off" else []
    kept = workspace / files.WORK_DIR / "caches"
    caches = {path: str(kept / Path(path).name) for path in _outermost(map(os.path.realpath, sealing.caches()))}
    try:
        yield overlays.command_of(covered, [str(here / files.WORK_DIR)], caches, layers) if covered else []
    finally:
        sealing.undo(workspace, wait_s=_END_S)
        for path, new in overlays.written(covered, layers):
            changed.add(path)
            if new is not None:
                sealing.keep_written(workspace, path, new)
        overlays.remove(layers)
        unfinished.unlink()


def _covered(folders: Sequence[Path], layers: Path) -> list[str]:
    """The user's home and the repositories of these folders; none that holds the whole system, or what is kept."""
    tops = (next((top for top in (path, *path.parents) if (top / ".git").exists()), path) for path in folders)
    found = _outermost(os.path.realpath(path) for path in (Path.home(), *tops) if path.is_dir())
    return [path for path in found if path != "/" and not layers.is_relative_to(path)]


def _outermost(paths: Iterable[str]) -> list[str]:
    """Without those in others."""
    found = list[str]()
    for path in sorted(set(paths)):
        if not any(Path(path).is_relative_to(other) for other in found):
            found.append(path)
    return found


def _listing(here: Path) -> frozenset[tuple[str, tuple[int, int]]]:
    """Names, sizes and times of the user's files; of none where there are too many to look at."""
    found, ours = set(), [os.fstat(1), os.fstat(2)]  # what this prints may go to a file there
    for place, folders, names in os.walk(here):
        folders[:] = [name for name in folders if name not in (".git", files.WORK_DIR.name, "__pycache__")]
        for name in names:
            path = Path(place, name)
            with suppress(OSError):
                info = path.lstat()
                if any(os.path.samestat(info, output) for output in ours):
                    continue
                found.add((str(path.relative_to(here)), (info.st_size, info.st_mtime_ns)))
        if len(found) > _MOST_LISTED:
            return frozenset()
    return frozenset(found)


def _run(command: Sequence[str], workspace: Path, *, to_stderr: bool) -> None:
    began_s = time.time()
    variables = search_path() | {"PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}
    done = subprocess.run(
        command,
        cwd=workspace,
        env=os.environ | variables,
        stdout=_STDERR if to_stderr else None,
        preexec_fn=lambda: die_with_parent(signal.SIGTERM),
        check=False,
    )
    result = workspace / COMPARISON
    if (workspace / files.REPORT).is_file():
        shutil.copyfile(workspace / files.REPORT, workspace.parents[1] / files.JUDGE_REPORT)
    if done.returncode == 0:
        return
    if result.is_file() and result.stat().st_mtime >= began_s and Comparison.read(result).gate == "failed":
        raise GateError("compare.gate: the comparison above does not pass")
    raise WorkspaceError("judge: mend what is named above, then run the same command again; finished parts are kept")
