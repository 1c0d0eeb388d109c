"""The runs of a store, as tests name them."""

from __future__ import annotations

from collections.abc import Iterable

from mlflow.entities import Run


def by_name(runs: Iterable[Run]) -> dict[str, Run]:
    """The runs by their names; that of `compare`, which is named after its answer, by its stage."""
    return {name_of(run): run for run in runs}


def name_of(run: Run) -> str:
    """The name of a run, or `compare`."""
    return "compare" if run.data.tags.get("stage") == "compare" else str(run.info.run_name)
