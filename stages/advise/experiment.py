"""DVC experiments in a temporary copy of the workspace, which stays as it is."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import psutil

from stages import files, workspace
from stages.errors import AdviceError
from stages.inputs import digests
from stages.inputs.own_model import own_model_files
from stages.locking import stage_lock
from stages.params import Params, Variant
from stages.results.comparison import COMPARISON, Comparison

PREFIX = "advise-"
_COPIES = Path(".dvc/tmp/exps/standalone")  # where DVC makes them
_END_S = 30.0  # for DVC to end after a signal
_POLL_S = 0.2


def alone() -> AbstractContextManager[None]:
    """Locks the workspace for experiments: one at a time is made of it.

    Raises:
        BusyError: another process makes one, and does not end soon.
    """
    return stage_lock("experiment")


def run(settings: Params, name: str, overrides: Iterable[str]) -> None:
    """Runs the pipeline with other parameters, as an experiment of this name; an earlier one is replaced.

    Args:
        settings: with these parameters.
        name: letters, digits and hyphens.
        overrides: what differs from params.yaml, in the grammar of Hydra.

    Raises:
        AdviceError: there is no git repository with a commit, or the experiment failed; it says so above.
    """
    workspace.require_commit()
    workspace.recover()
    if revision(name) is not None:
        _dvc("exp", "remove", name)
    command = ["exp", "run", "--temp", "--name", name, *(f"--set-param={text}" for text in overrides)]
    for path in untracked(settings):
        command += ["--copy-paths", path]
    before = _copies()
    workspace.protect()
    process = subprocess.Popen([sys.executable, "-m", "dvc", *command])
    try:
        workspace.hold(process.pid)
        while process.poll() is None:
            if _copies() - before and workspace.is_as_before():
                workspace.release()  # from here on, edits of the workspace are the user's
            time.sleep(_POLL_S)
    finally:
        _end(process)
        workspace.recover()
        remove_copies(_copies() - before)
    if process.returncode or revision(name) is None:
        raise AdviceError(f"the experiment {name} failed, as shown above; the workspace is as before")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends DVC after Ctrl-C or a signal; it has received Ctrl-C itself."""
    if process.poll() is None:
        with suppress(subprocess.TimeoutExpired):
            process.wait(1.0)
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_END_S)
    if process.poll() is None:
        process.kill()
        process.wait()


def name_of(variant: str) -> str:
    """Name of the experiment that tries a variant."""
    return f"{PREFIX}{variant.replace('_', '-')}"


def added(settings: Params, entries: Mapping[str, Variant]) -> Iterator[str]:
    """Overrides that add variants to the parameters.

    Args:
        settings: with these variants.
        entries: those that params.yaml lacks, by name.
    """
    yield f"train.variants=[{','.join(settings.train.variants)}]"
    for name, entry in entries.items():
        values = entry.model_dump(mode="json")
        kept = {key: value for key, value in values.items() if value not in (None, []) or key == "xla"}
        yield f"+variants.{name}={{{','.join(f'{key}:{_text(kept[key])}' for key in kept)}}}"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def untracked(settings: Params) -> list[str]:
    """The user's own files below the workspace that git does not track, and that an experiment needs.

    Data and scripts are found in the original checkout; modules are imported from the copy.
    """
    tasks = [] if settings.task.script is not None else [*settings.tasks.values()]
    own = [path for task in tasks for path in digests.task_files(task).values()]
    if settings.task.is_own is False:
        own = [*own_model_files(settings.model.name).values()]
    root = Path.cwd().resolve()
    inside = [path.resolve() for path in own if path.resolve().is_relative_to(root)]
    if not inside:
        return []
    names = [path.relative_to(root).as_posix() for path in inside]
    return [name for name in workspace.git("ls-files", "--others", "-z", "--", *names).split("\0") if name]


def revision(name: str) -> str | None:
    """The commit of an experiment; None if there is none of this name."""
    lines = workspace.git("for-each-ref", "refs/exps", "--format=%(objectname) %(refname)").splitlines()
    found = [line.split(" ")[0] for line in lines if line.endswith(f"/{name}")]
    return found[-1] if found else None


def comparison_of(name: str) -> Comparison:
    """The comparison of an experiment, from DVC's cache.

    Raises:
        AdviceError: it is not there.
    """
    import dvc.api  # takes a second

    try:
        content = dvc.api.read(COMPARISON.as_posix(), repo=".", rev=revision(name))
        return Comparison.of(json.loads(content), COMPARISON)
    except Exception as error:  # of DVC, git or the file
        raise AdviceError(f"the results of the experiment {name} cannot be read: {error}") from error


def apply(name: str) -> None:
    """Takes an experiment's parameters and results into the workspace."""
    _dvc("exp", "apply", name)


def _dvc(*arguments: str) -> None:
    done = subprocess.run([sys.executable, "-m", "dvc", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise AdviceError(f"dvc {' '.join(arguments)}: {' '.join(done.stderr.split())[:300]}")


def _copies() -> set[Path]:
    root = files.original_root() / _COPIES
    return {path for path in root.iterdir() if path.name.startswith("tmp")} if root.is_dir() else set()


def remove_copies(found: set[Path] | None = None) -> None:
    """Removes temporary copies, or all that experiments left behind, in which no process works any more."""
    found = _copies() if found is None else found
    used = {Path(cwd) for cwd in _working_folders()} if found else set()
    for path in found:
        if not any(folder.is_relative_to(path.resolve()) for folder in used):
            shutil.rmtree(path, ignore_errors=True)


def _working_folders() -> Iterator[str]:
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            yield process.cwd()
