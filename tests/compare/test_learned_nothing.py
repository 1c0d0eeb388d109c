"""A baseline that has learned nothing could lose nothing: the verdict is of speed only."""

from __future__ import annotations

import json

import pytest

from stages import files
from stages.compare.gate import check_gate
from stages.compare.judge import document_of
from stages.compare.report.html import render_report
from stages.compare.report.markdown import render_markdown
from stages.errors import GateError
from stages.results.comparison import Comparison
from tests.small_study import SmallStudy


def compared(project: SmallStudy, *p: float) -> Comparison:
    """The comparison, where predictions of the baseline are as good as permuted ones with this p-value by seed."""
    for seed, value in enumerate(p, start=1):
        folder = files.train_dir("float32", seed)
        metrics = json.loads((folder / "metrics.json").read_text())
        files.write_json(folder / "metrics.json", metrics | {"permuted_score": 0.1, "permuted_p": value})
        files.write_manifest(folder)
    return document_of(project.compare())


@pytest.mark.parametrize("p", [(0.5, 0.9, 0.2), (1.0, 1.0, 1.0), (0.002, 0.4, 0.5), (0.0005, 0.4, 0.5)])
def test_baseline_that_has_learned_nothing_adopts_nothing(project: SmallStudy, p: tuple[float, ...]) -> None:
    found = compared(project, *p)
    assert found.speed_only is True
    candidate = found.candidates["mixed_bfloat16"]
    assert candidate.verdict != "adopt"
    assert candidate.sentence.startswith("Speed only, because float32 has learned nothing: its accuracy is as good")
    with pytest.raises(GateError):
        check_gate(found)
    for page in (render_report(found, project.load()), render_markdown(found)):
        assert "has learned nothing" in page


@pytest.mark.parametrize("p", [(1e-5, 1e-9, 0.0), (0.0003, 0.9, 0.9), ()])
def test_baseline_that_has_learned_is_judged(project: SmallStudy, p: tuple[float, ...]) -> None:
    found = compared(project, *p)
    assert found.speed_only is None
    assert found.why_speed_only is None
    assert found.candidates["mixed_bfloat16"].verdict == "adopt"
