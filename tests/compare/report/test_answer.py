"""What every report begins with, and what the terminal ends with."""

from __future__ import annotations

from halfstep.compare.case import Judging
from halfstep.compare.document import document_of
from halfstep.compare.report.answer import answers, next_step
from halfstep.compare.report.head import question, what_was_compared
from halfstep.compare.report.markdown import render_markdown
from halfstep.results.comparison import Candidate, Comparison, Reason, Verdict
from tests.small_study import PROTOCOL, SmallStudy, html_of


def _with(comparison: Comparison, name: str, **changes: object) -> Comparison:
    """The document with one candidate, which is changed."""
    candidate: Candidate = comparison.candidates[name].model_copy(update=changes)
    return comparison.model_copy(update={"candidates": {name: candidate}})


def _with_inference(comparison: Comparison, batch_1: Verdict, batch_32: Verdict) -> Comparison:
    verdicts = {"train": "adopt", "inference_b1": batch_1, "inference_b32": batch_32}
    return _with(comparison, "mixed_bfloat16", verdicts=verdicts)


def _reason(code: str) -> Reason:
    return Reason(code=code, text="", evidence={}, advice="")


def test_fast_candidate_that_is_rejected_says_why(project: SmallStudy) -> None:
    project.scale_times("mixed_float16", "rounds.csv", 0.25 / 1.4)
    project.scale_times("_bridge_onednn_off", "rounds.csv", 0.8 / 1.5)
    document = document_of(project.compare())
    only = _with(document, "mixed_float16")
    assert only.candidates["mixed_float16"].verdict == "reject"
    assert ", but the precision itself brings only 0.9" in answers(only)[0].line
    quality = document.candidates["mixed_float16"].quality
    assert quality is not None
    worse = _with(only, "mixed_float16", quality=quality.model_copy(update={"outcome": "refuted"}))
    assert answers(worse)[0].line.endswith(", but loses more than 1 percentage point of accuracy.")


def test_inference_is_answered_by_batch_size(comparison: Judging) -> None:
    document = document_of(comparison)
    mixed = _with_inference(document, "reject", "inconclusive")
    assert answers(mixed)[1].line == "Inference: not decided yet at batch size 32. No at batch size 1."
    half = answers(_with_inference(document, "reject", "adopt"))[1]
    assert half.line.startswith("Inference: yes. At batch size 32, mixed_bfloat16 is 1.60× as fast (")
    assert half.line.endswith("; no at batch size 1.")
    none = _with_inference(document, "reject", "reject")
    assert answers(none)[1].line == "Inference: no."


def test_reports_begin_with_the_answer(comparison: Judging) -> None:
    line = answers(document_of(comparison))[0].text
    assert html_of(comparison).index(line) < html_of(comparison).index("<article")
    assert render_markdown(document_of(comparison)).startswith("- **Training: yes.** mixed\\_bfloat16 is 1.60×")


def test_busy_machine_is_said_before_the_verdicts_and_comes_first_in_what_to_do(project: SmallStudy) -> None:
    busy = "Other programs used 1.10 of 2 cores during the timing: stop them, then measure again with `x && y`"
    project.edit_profile("float32", protocol=PROTOCOL.model_copy(update={"warnings": (busy,)}))
    judging = project.compare(min_speedup=1.6)
    page = html_of(judging).replace("<code>x &amp;&amp; y</code>", "`x && y`")
    assert page.index(busy) < page.index("<article")
    result = document_of(judging)
    steps = result.candidates["mixed_bfloat16"].next_steps
    assert steps is not None
    assert steps[0] == f"{busy}."
    assert "Other programs" not in " ".join(document_of(project.compare()).candidates["mixed_float16"].next_steps or ())


def test_what_was_compared_is_in_the_head(comparison: Judging) -> None:
    document = document_of(comparison)
    assert document.setup is not None
    assert document.setup.protocol is not None
    origin = {"measured_at": "2026-03-31 14:05", "commit": "0123456789+"}
    setup = document.setup.model_copy(update={"protocol": document.setup.protocol.model_copy(update=origin)})
    rows = dict(what_was_compared(document.model_copy(update={"setup": setup}), "abc"))
    assert list(rows) == ["Model", "Data", "Training", "Variants", "Machine", "Measured"]
    assert "1,200 test images" in rows["Data"]
    assert "seeds 1, 2 and 3" in rows["Training"]
    assert rows["Variants"].startswith("float32; mixed_float16 (onednn: false)")
    assert rows["Measured"] == "2026-03-31 14:05 UTC, commit 0123456789 with changes, `dvc repro`, MLflow run abc"
    assert "Measured" not in dict(what_was_compared(document, None))
    page = html_of(comparison)
    assert page.index(rows["Variants"]) < page.index('<section id="speed"')


def test_question_is_of_the_precision_where_that_differs(comparison: Judging) -> None:
    document = document_of(comparison)
    assert "<h1>Is lower precision worth it here?</h1>" in html_of(comparison)
    assert document.setup is not None
    releases = {name: {"policy": "float32", "python": name} for name in ("float32", "old")}
    other = document.model_copy(update={"setup": document.setup.model_copy(update={"settings": releases})})
    assert question(other) == "Is the change worth it here?"


def test_next_step_is_one_thing_to_do(project: SmallStudy) -> None:
    document = document_of(project.compare())
    assert next_step(document).startswith('use mixed_bfloat16: keras.config.set_dtype_policy("mixed_bfloat16") before')
    slow = _with(document, "mixed_float16", next_steps=None, reasons=())
    assert slow.baseline_reasons is not None
    assert next_step(slow) == "python -m halfstep advise lists what can be tried"  # the baseline's XLA
    bare = slow.model_copy(update={"baseline_reasons": None})
    assert next_step(bare) == "nothing here names a setting to try; the report has the reasons"
    emulated = _with(bare, "mixed_float16", reasons=(_reason("emulated_float16"),))
    assert next_step(emulated).startswith(
        "no setting can help here, because this CPU emulates the precision of mixed_f"
    )
    steps = ("It is open.", "To measure that long, set profile.processes to 9.")
    assert next_step(_with(bare, "mixed_float16", next_steps=steps)) == "measure longer: set profile.processes to 9."
