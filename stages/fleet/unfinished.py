"""Which trainings have no result yet: neither here, nor in the run cache of this checkout or of the remote."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from stages.errors import FleetError, one_line


def unfinished(names: Sequence[str]) -> list[str]:
    """The stages of `names` that `dvc repro --pull` would run. Fetches the results of the others into DVC's cache.

    Raises:
        FleetError: DVC cannot read the pipeline, or the remote refuses.
    """
    from dvc.repo import Repo

    with _quiet():
        try:
            with Repo() as repo, repo.lock:
                repo.stage_cache.pull(None)
                return [name for name in names if not _has_result(repo, name)]
        except Exception as error:  # DVC does not wrap the exceptions of its remotes' drivers
            reason = one_line((str(error).strip() or type(error).__name__).splitlines()[0], 400)
            raise FleetError(f"DVC cannot look for results in its remote: {reason}") from error


def _has_result(repo: Any, name: str) -> bool:
    from dvc.exceptions import DvcException
    from dvc.stage.cache import RunCacheNotFoundError

    (stage,) = repo.stage.collect(name)
    if not stage.changed():
        return True
    stage.save_deps()
    try:
        repo.stage_cache.restore(stage, pull=True)
    except (RunCacheNotFoundError, DvcException):
        return False
    return True


@contextmanager
def _quiet() -> Iterator[None]:
    logger = logging.getLogger("dvc")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)
