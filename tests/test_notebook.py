"""docs/notebook.ipynb: a notebook judges a function that it defines."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

from halfstep.results.comparison import COMPARISON, Comparison
from halfstep.system import files
from tests.pipeline.conftest import SMALL
from tools import notebook


@pytest.mark.slow
def test_page_runs_and_shows_the_answer(tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(root))
    page = nbformat.read(root / notebook.PAGE, 4)
    amounts = {name: value for name, value in SMALL.items() if name.startswith("profile.")} | {"serve.formats": []}
    written = '{"train.epochs": 10}'
    (cell,) = [cell for cell in page.cells if written in cell.source]
    cell.source = cell.source.replace(written, repr({"train.epochs": 1, **amounts}))
    *_, answer, frame = notebook.executed(page, tmp_path).cells
    found = Comparison.read(tmp_path / files.JUDGE / COMPARISON)
    shown = answer.outputs[0].data["text/html"]
    assert ">Training " in shown
    assert shown.count("<circle") == sum(len(item.speedups) for item in found.candidates.values())
    assert "mixed_bfloat16" in frame.outputs[0].data["text/html"]


def test_page_has_the_outputs_of_its_cells(root: Path) -> None:
    page = nbformat.read(root / notebook.PAGE, 4)
    *_, judged, _, answer, frame = page.cells
    assert "profile: " in judged.outputs[0].text
    assert "Report     .halfstep/report.html" in answer.outputs[0].data["text/html"]
    assert "ratio" in frame.outputs[0].data["text/html"]
