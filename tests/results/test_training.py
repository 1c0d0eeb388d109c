"""The files of a training."""

from __future__ import annotations

from pathlib import Path

import pytest

from halfstep.results.training import HISTORY, HISTORY_COLUMNS, OWN_HISTORY_COLUMNS, PREDICTIONS, SCORES, write_training
from halfstep.system import files
from tests.small_study import save_model, training_metrics


@pytest.mark.parametrize(
    ("outputs_file", "columns"), [(PREDICTIONS, HISTORY_COLUMNS), (SCORES, OWN_HISTORY_COLUMNS)], ids=["images", "own"]
)
def test_training_that_failed_in_its_first_epoch_has_the_columns_of_its_task(
    outputs_file: str, columns: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder, metrics = (
        files.train_dir("float16", 0),
        training_metrics(status="failed", reason="the loss is nan", epoch=1),
    )
    write_training(folder, metrics, [], save_model, None, outputs_file=outputs_file)
    assert (folder / HISTORY).read_text().splitlines() == [",".join(columns)]
