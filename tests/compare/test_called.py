"""What a notebook shows of a comparison."""

from __future__ import annotations

from pathlib import Path

from halfstep.calling import Judged, _picture
from halfstep.compare.document import document_of
from halfstep.compare.metrics import tracking_metrics
from tests.small_study import SmallStudy


def test_answer_and_intervals_are_shown(project: SmallStudy, tmp_path: Path) -> None:
    document = document_of(project.compare())
    document.write(tmp_path / "comparison.json")
    found = Judged.read(tmp_path / "comparison.json")
    shown = found._repr_html_()
    assert ">Training " in shown
    assert shown.count("<circle") == len(found.to_frame()) > 2
    assert found.to_frame()["ratio"].tolist() == [
        speedup.ratio for item in found.candidates.values() for speedup in item.speedups.values()
    ]
    assert tracking_metrics(found) == tracking_metrics(document)
    assert _picture(found.to_frame().head(0), 1.05) == ""
