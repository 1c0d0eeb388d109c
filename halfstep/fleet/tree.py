"""What travels to the nodes: the checkout as it is, without what git ignores, and the inputs' digests."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from halfstep.errors import CommandError, FleetError, one_line
from halfstep.fleet import remote
from halfstep.inputs import digests
from halfstep.inputs.head_digests import HEAD_DIGESTS, HeadDigests
from halfstep.params.schema import Params
from halfstep.system import files
from halfstep.system.commands import git
from halfstep.tracking import provenance

_DIGESTS = {"source": files.SOURCE_FILE, "model": files.MODEL_FILE, "task": files.TASK_FILE}
_MOST_NAMED = 3


@contextmanager
def staged(settings: Params) -> Iterator[Path]:
    """A folder with the files of the checkout that travel, for Ray's `working_dir`.

    These are the files that git knows or does not ignore, and the sources and `task.depends` of the task.

    Raises:
        FleetError: git does not know the folder, or a source is outside of it.
    """
    with tempfile.TemporaryDirectory(prefix="halfstep-") as folder:
        for name in sorted({*_listed(), *_sources(settings)}):
            if Path(name).is_file():
                (target := Path(folder) / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(name, target)
        yield Path(folder)


def contents() -> dict[str, bytes]:
    """Files that git ignores or that `prepare` has just written, by path: `dvc.lock`, the digests, DVC's remote.

    Raises:
        DataError: `environment` has not written the digests.
        FleetError: DVC's configuration cannot be read.
    """
    head_digests = {name: files.read_json(path) for name, path in _DIGESTS.items()}
    marker = HeadDigests(**head_digests, checkout=provenance.checkout_id(), git=provenance.git_tags())
    lock = Path("dvc.lock")
    return {
        str(HEAD_DIGESTS): marker.model_dump_json().encode(),
        ".dvc/config.local": remote.configured().as_config().encode(),
        **({str(lock): lock.read_bytes()} if lock.is_file() else {}),
    }


def _listed() -> list[str]:
    try:
        output = git("ls-files", "-z", "--cached", "--others", "--exclude-standard")
    except CommandError as error:
        raise FleetError(f"git says what travels to the nodes, but {error}; run `git init`") from error
    return [name for name in output.split("\0") if name]


def _sources(settings: Params) -> list[str]:
    """Files of the user's model or task, relative to the checkout."""
    here, named = Path.cwd().resolve(), digests.own_sources(settings)
    if not settings.task.uses_data_and_model:
        depends = [files.resolve_data_path(name) for name in settings.task.depends]
        named += [("task.depends", path) for top in depends for path in _below(top)]
    if outside := [(subject, path) for subject, path in named if not path.resolve().is_relative_to(here)]:
        raise FleetError(
            *(
                f"{subject}: {one_line(str(path), 200)} is outside of this checkout, so the nodes would not have it; "
                "move it here"
                for subject, path in outside[:_MOST_NAMED]
            )
        )
    return [path.resolve().relative_to(here).as_posix() for _, path in named]


def _below(path: Path) -> Iterator[Path]:
    """The files that the digest of `task.depends` covers."""
    if not path.is_dir():
        yield path
        return
    for folder, names in digests.visible_files(path):
        yield from (folder / name for name in sorted(names))
