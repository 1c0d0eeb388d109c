"""The stage as a whole: what it leaves in the tracking store, and how it ends."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run

from stages import files
from stages.compare.__main__ import main
from stages.compare.markdown import render_markdown


@pytest.fixture
def configure(project: Any, store_template: Path, write_params: Callable[..., Path]) -> Callable[..., None]:
    """Writes parameters for one candidate that is rejected, and gives the store."""
    shutil.copy(store_template, "mlflow.db")
    for variant in ("float32", "mixed_float16"):
        (files.train_dir(variant, 1) / "model.keras").write_bytes(b"a model")
        files.write_manifest(files.train_dir(variant, 1))
    files.write_json(files.PREPARED / "info.json", files.read_json(files.PREPARED / "info.json") | {"rejected": 0})
    for name in ("sample_grid.png", "class_counts.csv", "rejected.csv"):
        (files.PREPARED / name).write_bytes(b"")
    files.write_manifest(files.PREPARED)

    def write(**compare: Any) -> None:
        variants = {name: {"policy": name} for name in ("float32", "mixed_float16")}
        write_params(variants=variants, train={"variants": list(variants), "seeds": [1]}, compare=compare)

    return write


def compare_runs() -> list[Run]:
    client = MlflowClient(f"sqlite:///{Path.cwd()}/mlflow.db")
    experiment = client.get_experiment_by_name("mixed-precision")
    assert experiment is not None
    return list(client.search_runs([experiment.experiment_id], "tags.stage = 'compare'"))


def test_a_gate_that_stays_shut_leaves_files_and_one_finished_run(
    configure: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    configure(gate=True)
    assert main() == 1
    assert "compare.gate: no candidate was adopted (mixed_float16 reject)" in capsys.readouterr().err
    assert (files.COMPARE / "report.html").is_file()
    (run,) = compare_runs()
    assert (run.info.status, run.data.tags["gate"]) == ("FINISHED", "failed")
    assert run.data.tags["verdict.mixed_float16"] == "reject"
    expected = render_markdown(files.read_json(files.COMPARE / "comparison.json"))
    assert run.data.tags["mlflow.note.content"] == expected
    drawn = MlflowClient(f"sqlite:///{Path.cwd()}/mlflow.db").list_artifacts(run.info.run_id, "figures")
    assert {"figures/speedups.png", "figures/memory.png"} <= {item.path for item in drawn}

    assert main() == 1  # the same result
    assert len(compare_runs()) == 1

    configure(gate=False)
    assert main() == 0
    assert sorted(run.data.tags.get("gate", "none") for run in compare_runs()) == ["failed", "none"]


def test_nothing_is_registered_where_nothing_is_adopted(
    configure: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    configure(register="classifier")
    assert main() == 0
    assert "no candidate was adopted, so 'classifier' stays as it is" in capsys.readouterr().out
    assert MlflowClient(f"sqlite:///{Path.cwd()}/mlflow.db").search_registered_models() == []
