"""The HTML report: complete, self-contained and escaped."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from halfstep.compare.case import Judging
from halfstep.compare.ratio_text import SYNTHETIC_NOTE
from halfstep.results.profile import read_profile
from halfstep.system import files
from tests.small_study import ENDING, PROTOCOL, STEP_MS, SmallStudy, given, html_of

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


def remove_account(name: str) -> None:
    """Removes what the short traces of an arm found."""
    (files.profile_dir(name) / "account.csv").unlink()
    files.write_manifest(files.profile_dir(name))


def _text(comparison: Judging) -> str:
    """The text of the report, whose tags must be balanced."""
    parser = _Balance()
    parser.feed(html_of(comparison))
    assert parser.open == []
    return " ".join(" ".join(parser.text).split())


def test_report_opens_offline(comparison: Judging) -> None:
    html = html_of(comparison)
    assert not re.search(r"src=|href=\"[^#]|url\(|@import|<script|https?://", html)
    places = set(re.findall(r'href="#(\w+)"', html))
    assert {"speed", "quality", "reasons", "details"} <= places <= set(re.findall(r'<section id="(\w+)"', html))


def test_warnings_are_escaped(project: SmallStudy) -> None:
    project.edit_profile("mixed_bfloat16", warnings=("<script>alert(1)</script>",))
    html = html_of(project.compare())
    assert "<script>" not in html
    assert "&lt;script&gt;alert(1)" in html


def test_latency_that_still_falls_is_not_called_steady(project: SmallStudy) -> None:
    assert "still getting faster" not in _text(project.compare())
    project.edit_profile("float32", protocol=PROTOCOL.model_copy(update={"unsteady": ("inference_b1",)}))
    assert "was still getting faster" not in _text(project.compare())  # it fell in all arms alike
    project.scale_times("mixed_bfloat16", "inference.csv", 0.8, first_call=2)
    text = _text(project.compare())
    assert "Inference at batch size 1 was still getting faster when each measurement ended" in text
    assert "In the later half of the calls, mixed_bfloat16 is 2.0" in text


def test_missing_trace_is_named(project: SmallStudy) -> None:
    assert "no trace" not in _text(project.compare())
    for name in ("mixed_bfloat16", "_control"):
        metrics = {key: value for key, value in read_profile(name).metrics.items() if not key.startswith("profiler/")}
        project.edit_profile(name, metrics=metrics)
        remove_account(name)
    comparison = project.compare()
    assert "mixed_bfloat16 and the second copy of the baseline have no trace, so" in _text(comparison)
    assert comparison.cases[1].verdict == "adopt"


def test_variants_that_were_compiled_with_xla_are_named(project: SmallStudy) -> None:
    assert "compiled with XLA no variant" in _text(project.compare())
    project.add_bridge("_bridge_xla_on", xla=True)
    for name, text in {"mixed_bfloat16": "mixed_bfloat16", "mixed_float16": None, "float32": "all variants"}.items():
        in_force = read_profile(name).summary.in_force.model_copy(update={"xla": True})
        project.edit_profile(name, in_force=in_force)
        assert text is None or f"compiled with XLA {text}" in _text(project.compare())


def test_void_account_is_named(comparison: Judging) -> None:
    case = comparison.cases[1]
    assert case.account is not None
    account = case.account.model_copy(update={"void": True, "copy_kinds": case.account.kinds[:1]})
    void = given(case, account=account)
    text = _text(given(comparison, cases=(void,)))
    assert "The two copies of float32, which are equal, differ by more than noise in these traces" in text
    assert "The traces cannot say why: by them, the two copies of the baseline, which are equal, differ in " in text


@pytest.mark.parametrize(
    ("ended_by", "text"),
    [
        ("max_seconds", "of 6 intervals, 6 out of time (profile.max_seconds)"),
        ("time", "of 6 intervals, 6 out of time (profile.max_seconds gives more)"),
        ("rounds", "of 6 intervals, 6 out of rounds"),
        ("target_precision", f"of 6 intervals, 6 reached ±{PROTOCOL.target_precision:g}"),
    ],
)
def test_report_describes_the_measurement(project: SmallStudy, ended_by: str, text: str) -> None:
    ending = ENDING.model_copy(update={"ended_by": ended_by})
    endings = {name: dict.fromkeys(of_one, ending) for name, of_one in PROTOCOL.endings.items()}
    changes = {
        "timing_seconds": 31.6,
        "endings": endings,
        "other_load_cores": 0.25,
    }
    project.edit_profile("float32", protocol=PROTOCOL.model_copy(update=changes))
    shown = _text(project.compare())
    assert f"why the timing ended {text}" in shown
    assert "seconds of timing 31.6" in shown
    assert "cores used by other programs 0.25" in shown


def test_synthetic_images_are_named_at_the_top(project: SmallStudy) -> None:
    assert SYNTHETIC_NOTE not in html_of(project.compare())
    project.make_synthetic()
    text = _text(project.compare())
    assert text.index(SYNTHETIC_NOTE) < text.index("Use mixed_bfloat16")


def test_sections_without_measurements_are_left_out(project: SmallStudy) -> None:
    for name in ("float32", "mixed_float16", "mixed_bfloat16"):
        project.edit_profile(name, metrics={f"step_time_ms/{key}": STEP_MS for key in ("p50", "p95", "mean")})
        remove_account(name)
    text = _text(project.compare())
    assert "What changed in a training step" not in text
