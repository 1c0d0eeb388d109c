"""Invalid input, through `dvc repro`: one line per error on standard error, and no file is changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.pipeline.conftest import Checkout


def test_dvc_repro_stops_before_any_file_is_changed(finished: Checkout) -> None:
    before = finished.snapshot()
    with finished.restored("params.yaml"):
        finished.configure({"train.epochs": -1})
        done = finished.run("dvc", "repro")
    assert done.returncode != 0
    assert "params.yaml: train.epochs is -1; it must be an integer of at least 0" in done.stderr
    assert "Traceback" not in done.stderr
    assert finished.snapshot() == before
