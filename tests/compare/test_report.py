"""The report and the terminal table: complete, self-contained, and escaped."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import pytest
from rich.console import Console

from stages import files
from stages.compare.charts import Axis
from stages.compare.comparison import Comparison
from stages.compare.report import render_report
from stages.compare.table import render
from stages.compare.wording import SYNTHETIC_NOTE, signed_points, verdict_sentence

VOID = {"meta", "br", "img", "link", "input", "hr"}


class _Balance(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def _text(html: str) -> str:
    parser = _Balance()
    parser.feed(html)
    assert parser.open == []
    return " ".join(" ".join(parser.text).split())


def _terminal(comparison: Comparison) -> str:
    console = Console(width=160, record=True, force_terminal=False)
    console.begin_capture()
    console.print(render(comparison))
    return console.end_capture()


def test_report_opens_offline(comparison: Comparison) -> None:
    html = render_report(comparison)
    assert not re.search(r"(?:src|href)=|url\(|@import|<script|https?://", html)


def test_report_says_the_verdict_before_everything_else(comparison: Comparison) -> None:
    text = _text(render_report(comparison))
    sentence = verdict_sentence(comparison.candidates[1], comparison)
    assert sentence in text
    assert text.index(sentence) < text.index("Time of float32")


@pytest.mark.parametrize(
    "expected",
    [
        "1.60× (1.58 to 1.62)",
        "Conv2D",
        "emulated_float16",
        "peak memory",
        "noise floor 1.5 %",
        "Test CPU 9000",
        "tensorflow",
    ],
)
def test_report_holds(comparison: Comparison, expected: str) -> None:
    assert expected in _text(render_report(comparison))


def test_report_escapes_what_it_is_given(project: Any) -> None:
    path = files.profile_dir("mixed_bfloat16") / "summary.json"
    project.edit(path, warnings=["<script>alert(1)</script>"])
    html = render_report(project.compare())
    assert "<script>" not in html
    assert "&lt;script&gt;alert(1)" in html


def test_a_run_on_synthetic_images_says_so_at_the_top(project: Any) -> None:
    assert SYNTHETIC_NOTE not in render_report(project.compare())
    project.make_synthetic()
    text = _text(render_report(project.compare()))
    assert text.index(SYNTHETIC_NOTE) < text.index("Use mixed_bfloat16")
    assert SYNTHETIC_NOTE in _terminal(project.compare())


def test_terminal_table(comparison: Comparison) -> None:
    shown = _terminal(comparison)
    assert "1.60× (1.58 to 1.62)" in shown
    assert "Use mixed_bfloat16: training runs at 1.60×" in shown
    assert "Do not use mixed_float16: training takes 4.0 times as long" in shown
    assert "float16 could not be compared. 3 of 3 trainings" in shown


def test_sentence_of_an_open_question_says_what_is_open(project: Any) -> None:
    comparison = project.compare(accuracy_margin=0.002, min_speedup=1.6)
    sentence = verdict_sentence(comparison.candidates[1], comparison)
    assert "not clearly above 1.60×" in sentence
    assert "does not exclude a loss of more than 0.2 percentage points" in sentence


def test_report_without_any_measurement_of_a_kind_leaves_its_section_out(project: Any) -> None:
    for name in ("float32", "mixed_float16", "mixed_bfloat16"):
        path = files.profile_dir(name) / "summary.json"
        kept = {key: value for key, value in files.read_json(path)["metrics"].items() if key.startswith("step_time_ms")}
        project.edit(path, metrics=kept, operations=[])
    text = _text(render_report(project.compare()))
    assert "Memory" not in text
    assert "Where a training step spends its time" not in text
    assert "Operations before" not in text
    assert "Inference latency" in text


@pytest.mark.parametrize(("fraction", "text"), [(-0.0025, "−0.25"), (0.01, "+1.00"), (0.0, "0.00"), (-0.00001, "0.00")])
def test_signed_points(fraction: float, text: str) -> None:
    assert signed_points(fraction) == text


def test_axis_places_values_and_ticks_inside() -> None:
    axis = Axis.around([0.25, 4.0], logarithmic=True)
    assert axis.at(1.0) == pytest.approx(50.0)
    assert axis.at(0.0001) == 0.0
    assert all(axis.low <= tick <= axis.high for tick in axis.ticks())
    assert 1 in axis.ticks()
    assert Axis(-0.011, 0.006).ticks(4) == [-0.01, -0.005, 0.0, 0.005]
