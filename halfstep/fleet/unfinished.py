"""Which trainings have no result yet: neither here, nor in the run cache of this checkout or of the remote."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from halfstep.errors import FleetError, one_line
from halfstep.params.schema import TrainParams
from halfstep.system import files


def unfinished_trainings(train: TrainParams) -> dict[str, tuple[str, int]]:
    """The stages `train@...` without a result, with their variants and seeds. Fetches the results of the others.

    Raises:
        FleetError: DVC cannot read the pipeline, or the remote refuses.
    """
    from dvc.repo import Repo

    pairs = [(variant, seed) for variant in train.variants for seed in train.seeds]
    names = {f"train@{files.train_dir(*pair).name}": pair for pair in pairs}
    with _quiet():
        try:
            with Repo() as repo, repo.lock, _parameters_read_once():
                repo.stage_cache.pull(None)
                stages = {stage.addressing: stage for stage in repo.index.stages}  # the graph and dvc.lock, once
                return {name: pair for name, pair in names.items() if not _has_result(repo, stages[name])}
        except Exception as error:  # DVC does not wrap the exceptions of its remotes' drivers
            reason = one_line((str(error).strip() or type(error).__name__).splitlines()[0], 400)
            raise FleetError(f"DVC cannot look for results in its remote: {reason}") from error


def _has_result(repo: Any, stage: Any) -> bool:
    from dvc.exceptions import DvcException
    from dvc.stage.cache import RunCacheNotFoundError

    if not stage.changed():
        return True
    try:
        repo.stage_cache.restore(stage, pull=True)
    except (RunCacheNotFoundError, DvcException):
        return False
    return True


@contextmanager
def _parameters_read_once() -> Iterator[None]:
    """In the block, DVC parses params.yaml once, and not for every stage that depends on it."""
    from dvc.dependency import param

    before, loaded = param.load_path, dict[str, Any]()

    def load_once(path: str, *arguments: Any, **options: Any) -> Any:
        if path not in loaded:
            loaded[path] = before(path, *arguments, **options)
        return loaded[path]

    param.load_path = load_once
    try:
        yield
    finally:
        param.load_path = before


@contextmanager
def _quiet() -> Iterator[None]:
    logger = logging.getLogger("dvc")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)
