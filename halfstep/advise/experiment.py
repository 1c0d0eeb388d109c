"""DVC experiments in a clone of the repository: the workspace is never touched, so that a kill cannot harm it.

The clone shares git's objects and DVC's cache with the original, and has its uncommitted edits. When the experiment has
ended, its commit is fetched from the clone: `dvc exp show` lists it and `dvc exp apply` takes it over, as if it had run
here.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from halfstep import files
from halfstep.commands import dvc, git, run_dvc
from halfstep.errors import AdviceError, CommandError
from halfstep.inputs import digests
from halfstep.locking import stage_lock
from halfstep.params import Params, Variant
from halfstep.results.comparison import COMPARISON, Comparison

PREFIX = "advise-"
CLONES = files.WORK_DIR / "advise"
_END_S = 30.0  # for DVC to end after a signal


def alone() -> AbstractContextManager[None]:
    """Locks the checkout for experiments: one at a time is made of it.

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
        CommandError: the repository cannot be cloned.
    """
    require_commit()
    command = ["exp", "run", "--name", name, *(f"--set-param={text}" for text in overrides)]
    with _clone(settings) as here:
        environment = os.environ | {files.ORIGINAL: str(files.original_root())}
        process = subprocess.Popen([sys.executable, "-m", "dvc", *command], cwd=here, env=environment)
        try:
            process.wait()
        finally:
            _end(process)
        references = _references(name, here)
        if process.returncode or not references:
            raise AdviceError(f"the experiment {name} failed, as shown above; the workspace is as before")
        if revision(name) is not None:
            dvc("exp", "remove", name)
        git("fetch", "--quiet", "--no-tags", str(here), *(f"+{reference}:{reference}" for reference in references))


def require_commit() -> None:
    """Raises an AdviceError without a commit, from which experiments are made."""
    try:
        git("rev-parse", "--verify", "--quiet", "HEAD")
    except CommandError as error:
        raise AdviceError(
            "experiments of DVC need a git repository with a commit: run `git init`, `git add --all` and `git commit` "
            f"({error})"
        ) from None


@contextmanager
def _clone(settings: Params) -> Iterator[Path]:
    """A clone with the uncommitted edits and the results, in which no command of git or DVC touches the original.

    Yields:
        The folder in it that stands for the working folder.
    """
    here = Path.cwd().resolve()
    top = Path(git("rev-parse", "--show-toplevel")).resolve()
    clone = files.original_root() / CLONES / uuid.uuid4().hex[:12]
    try:
        git("clone", "--quiet", "--local", "--no-tags", str(top), str(clone))
        changed = git("diff", "--name-only", "-z", "HEAD", folder=top).split("\0")
        inside = here.relative_to(top)
        beside = [inside / name for name in ("params.yaml", "dvc.lock", *untracked(settings))]
        for name in {*map(Path, filter(None, changed)), *beside}:
            _copy(top / name, clone / name)
        _share_cache(here, clone / inside)
        run_dvc("checkout", "--allow-missing", "dvc.yaml", folder=clone / inside)  # what is missing is computed
        yield clone / inside
    finally:
        shutil.rmtree(clone, ignore_errors=True)


def _copy(source: Path, target: Path) -> None:
    if source.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target)
    elif not source.exists():
        target.unlink(missing_ok=True)


def _share_cache(here: Path, clone: Path) -> None:
    """Takes over the settings of DVC that git does not track, and the place of its cache."""
    root, cache = Path(dvc("root").strip()), dvc("cache", "dir").strip()
    _copy(here / root / ".dvc/config.local", clone / root / ".dvc/config.local")
    dvc("cache", "dir", "--local", str((here / cache).resolve()), folder=clone)


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

    Data and scripts are found in the original checkout; modules are imported from the clone.
    """
    root = Path.cwd().resolve()
    own = [path.resolve() for name, path in digests.own_sources(settings) if name != "task.script"]
    inside = [path for path in own if path.is_relative_to(root)]
    if not inside:
        return []
    names = [path.relative_to(root).as_posix() for path in inside]
    return [name for name in git("ls-files", "--others", "-z", "--", *names).split("\0") if name]


def revision(name: str) -> str | None:
    """The commit of an experiment; None if there is none of this name."""
    references = _references(name)
    return git("rev-parse", references[-1]) if references else None


def _references(name: str, folder: Path | None = None) -> list[str]:
    lines = git("for-each-ref", "refs/exps", "--format=%(refname)", folder=folder).splitlines()
    return [line for line in lines if line.endswith(f"/{name}")]


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
    dvc("exp", "apply", name)


def remove_clones() -> None:
    """Removes clones that were left behind, in which no process works any more."""
    folder = files.original_root() / CLONES
    clones = [*folder.iterdir()] if folder.is_dir() else []
    used = [Path(cwd) for cwd in _working_folders()] if clones else []
    for path in clones:
        if not any(cwd.is_relative_to(path.resolve()) for cwd in used):
            shutil.rmtree(path, ignore_errors=True)


def _working_folders() -> Iterator[str]:
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            yield process.cwd()
