"""All runs can be logged again from the files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.tracked_runs import by_name

if TYPE_CHECKING:
    from mlflow.entities import Run

    from tests.pipeline.conftest import Checkout

# Tags that depend on when and where the run was logged.
VOLATILE_TAGS = {"mlflow.parentRunId", "git.commit", "mlflow.log-model.history", "halfstep.checkout"}


def test_deleted_or_other_store_is_filled_from_the_files(finished: Checkout, copied: Checkout) -> None:
    assert copied.repro() == {"environment", "compare"}
    before, after = _by_name(finished.runs()), _by_name(copied.runs())
    assert set(after) == set(before)
    for name, run in after.items():
        assert run.data.metrics == pytest.approx(before[name].data.metrics), name
        assert run.data.params == before[name].data.params
        assert _tags(run) == _tags(before[name])
        assert run.info.status == before[name].info.status
        assert str(run.info.artifact_uri).startswith(f"file://{copied.root}/mlruns/")
    assert {after[name].data.tags["mlflow.parentRunId"] for name in after if name != "compare"} == {
        after["compare"].info.run_id
    }

    elsewhere = copied.root.parent / "elsewhere"
    elsewhere.mkdir()
    (copied.root / "mlflow.db").unlink()
    copied.configure({"tracking.experiment": "another"})
    copied.check_output("dvc", "repro", MLFLOW_TRACKING_URI=f"sqlite:///{elsewhere}/mlflow.db")
    assert set(_by_name(type(copied)(elsewhere).runs("another"))) == set(before)
    assert not (copied.root / "mlflow.db").exists()
    assert (elsewhere / "mlruns").is_dir()


def _by_name(runs: list[Run]) -> dict[str, Run]:
    return by_name(runs)


def _tags(run: Run) -> dict[str, str]:
    return {name: text for name, text in run.data.tags.items() if name not in VOLATILE_TAGS}
