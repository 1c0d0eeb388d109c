"""The answer in six lines, with which every report begins, and the terminal ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from halfstep.compare.answer import answer_of
from halfstep.compare.case import Judging
from halfstep.compare.document import document_of
from halfstep.compare.report.head import question, what_was_compared
from halfstep.compare.report.html import render_report
from halfstep.compare.report.markdown import render_markdown
from halfstep.compare.report.terminal import answer_text
from halfstep.results.comparison import (
    Candidate,
    Comparison,
    Latency,
    OpenQuestion,
    Quality,
    Ratio,
    Reason,
    Remedy,
    ServedRow,
    Serving,
    Verdict,
    Waiting,
)
from halfstep.system import files, rerun
from tests.small_study import PROTOCOL, SmallStudy, html_of


def _with(comparison: Comparison, name: str, **changes: object) -> Comparison:
    """The document with one candidate, which is changed."""
    candidate: Candidate = comparison.candidates[name].model_copy(update=changes)
    return comparison.model_copy(update={"candidates": {name: candidate}})


def _with_inference(comparison: Comparison, batch_1: Verdict, batch_32: Verdict) -> Comparison:
    verdicts = {"train": "adopt", "inference_b1": batch_1, "inference_b32": batch_32}
    return _with(comparison, "mixed_bfloat16", verdicts=verdicts)


def _all(verdict: Verdict) -> dict[str, Verdict]:
    """The same verdict on every measure."""
    return dict.fromkeys(("train", "inference_b1", "inference_b32"), verdict)


def _reason(code: str, advice: str = "") -> Reason:
    return Reason(code=code, text="", evidence={}, advice=advice)


def _with_best(comparison: Comparison, quality: Quality | None = None) -> Comparison:
    """The document with LiteRT adopted for the baseline's weights."""
    ratio = Ratio(value=59.4, low=56.1, high=63.2)
    row = ServedRow(
        variant="float32", format="litert", file="data/serve/models/float32-0/litert.tflite", quality=quality
    )
    serving = Serving(weights="float32", rows=(row,), best="litert", best_ratio=ratio, sentence="")
    return comparison.model_copy(update={"serving": serving})


def test_fast_candidate_that_is_rejected_says_why(project: SmallStudy) -> None:
    project.scale_times("mixed_float16", "rounds.csv", 0.25 / 1.4)
    project.scale_times("_bridge_onednn_off", "rounds.csv", 0.8 / 1.5)
    document = document_of(project.compare())
    only = _with(document, "mixed_float16")
    assert only.candidates["mixed_float16"].verdict == "reject"
    assert ", but its precision makes 0.9" in answer_of(only).training
    quality = document.candidates["mixed_float16"].quality
    assert quality is not None
    worse = _with(only, "mixed_float16", quality=quality.model_copy(update={"outcome": "refuted"}))
    assert answer_of(worse).training.endswith(", but it loses accuracy")


def test_answer_names_two_candidates_and_counts_the_others(comparison: Judging) -> None:
    document = document_of(comparison)
    slow = document.candidates["mixed_float16"].model_copy(update={"verdicts": _all("reject")})
    names = ("mixed_float16", "b", "c", "d")
    several = document.model_copy(update={"candidates": dict.fromkeys(names, slow), "failed": ("broken",)})
    assert answer_of(several).training.endswith(", b 0.25×, and 2 more; broken failed")
    assert answer_of(several.model_copy(update={"candidates": {"mixed_float16": slow}})).training.startswith(
        "no: keep float32. float16 "
    )
    both = document.model_copy(update={"candidates": {"mixed_float16": slow, "float16": slow}})
    assert "mixed_float16 " in answer_of(both).training, "two names would be the same"


def test_nothing_was_compared_or_all_of_it_was_disturbed(comparison: Judging) -> None:
    document = document_of(comparison)
    failed = document.candidates["mixed_float16"].model_copy(
        update={"speedup": None, "verdicts": _all("inconclusive"), "reasons": (_reason("arm_failed", "Mend it."),)}
    )
    none = document.model_copy(update={"candidates": {"mixed_float16": failed}, "failed": ("mixed_float16",)})
    answer = answer_of(none)
    assert (answer.training, answer.why) == ("not known: no variant could be compared; float16 failed", None)
    assert (answer.inference, answer.next, answer.command) == (None, "Mend it.", None)
    control = {measure: item.model_copy(update={"differs": True}) for measure, item in document.control.items()}
    void = answer_of(document.model_copy(update={"control": control}))
    assert void.training == void.inference == "not known: the measurement was disturbed"


def test_speed_only_says_that_quality_is_unknown(comparison: Judging) -> None:
    document = document_of(comparison)
    verdicts = dict.fromkeys(document.candidates["mixed_bfloat16"].verdicts, "faster")
    fast = _with(document, "mixed_bfloat16", verdicts=verdicts, quality=None)
    answer = answer_of(fast.model_copy(update={"speed_only": True, "failed": None}))
    assert answer.training.startswith("faster: bfloat16 1.60× (")
    assert answer.training.endswith("; accuracy not measured")


def test_waiting_for_input_is_the_answer_where_it_takes_most_of_a_step(comparison: Judging) -> None:
    document = document_of(comparison)
    for cached_ms, begin in ((3.8, "no: 62 % of a step waits for input; "), (7.0, "no: ")):
        waiting = Waiting(step_ms=10.0, cached_ms=cached_ms, low=0.2, high=0.7, rounds=9)
        changes = {"verdicts": _all("reject"), "waiting": waiting, "reasons": (_reason("input_bound"),)}
        text = answer_of(_with(document, "mixed_float16", **changes)).training
        assert text.startswith(begin)
        assert ("waits for input" in text) == (cached_ms < 5)


def test_inference_is_the_best_format_or_else_the_precision(comparison: Judging) -> None:
    document = document_of(comparison)
    mixed = _with_inference(document, "reject", "inconclusive")
    assert answer_of(mixed).inference is not None
    assert str(answer_of(mixed).inference).startswith("not decided: bfloat16 1.60× (")
    half = str(answer_of(_with_inference(document, "reject", "adopt")).inference)
    assert half.startswith("yes: bfloat16 1.60× (")
    assert half.endswith(" at batch 32; at 1 not")
    quality = document.candidates["mixed_bfloat16"].quality_same_weights
    served = answer_of(_with_best(mixed, quality))
    assert served.inference == "yes: float32 as LiteRT, 60× Keras (56 to 63), accuracy the same"
    assert answer_of(_with_best(mixed)).inference == (
        "faster: float32 as LiteRT, 60× Keras (56 to 63); accuracy not measured"
    )


def test_format_that_is_faster_but_not_shown_to_keep_the_score_is_not_decided(comparison: Judging) -> None:
    """40 times as fast is no `no`, also where the test set is too small for the margin."""
    document = document_of(comparison)
    quality = document.candidates["mixed_bfloat16"].quality_same_weights
    assert quality is not None
    latency = {"inference_b1": Latency(value=39.2, low=37.9, high=40.7, time_ms=0.011)}
    row = ServedRow(
        variant="float32",
        format="litert",
        latency=latency,
        verdict="inconclusive",
        quality=quality.model_copy(update={"outcome": "not established"}),
    )
    serving = Serving(weights="float32", measures=("inference_b1",), rows=(row,), sentence="")

    def inference(first: Verdict, row_of: ServedRow = row) -> str | None:
        whole = _with_inference(document, first, "reject")
        rows = serving.model_copy(update={"rows": (row_of,)})
        return answer_of(whole.model_copy(update={"serving": rows})).inference

    assert inference("reject") == (
        "not decided: float32 as LiteRT, 40× Keras (38 to 41), accuracy not shown to be the same"
    )
    assert str(inference("adopt")).startswith("yes: bfloat16")
    losing = row.model_copy(update={"verdict": "reject", "quality": quality})
    assert not str(inference("reject", losing)).startswith("not decided: float32 as LiteRT")


def test_reports_begin_with_the_answer_and_the_terminal_ends_with_it(comparison: Judging) -> None:
    document = document_of(comparison)
    answer = document.answer
    assert answer is not None
    assert answer.training.startswith("yes: bfloat16 1.60×")
    assert html_of(comparison).index(answer.training) < html_of(comparison).index("<article")
    assert render_markdown(document).startswith("- **Training** yes: bfloat16 1.60×")
    lines = answer_text(document).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0] == f"Training   {answer.training}"
    assert lines[-1] == "Report     data/compare/report.html"


def test_document_of_an_earlier_release_is_shown_without_an_answer(comparison: Judging) -> None:
    older = document_of(comparison).model_copy(update={"answer": None})
    assert answer_text(older) == ""
    assert render_markdown(older).startswith("\nCompared with float32 on ")
    assert '<dl class="answer">' not in render_report(older)


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


def test_next_names_every_setting_that_was_adopted(comparison: Judging) -> None:
    document = document_of(comparison)
    assert answer_of(document).next == 'set keras.config.set_dtype_policy("mixed_bfloat16")'
    assert document.setup is not None
    settings = {"policy": "mixed_bfloat16", "float32_layers": "head", "onednn": False, "xla": True}
    setup = document.setup.model_copy(update={"settings": {"mixed_bfloat16": settings}})
    assert answer_of(document.model_copy(update={"setup": setup})).next == (
        'set keras.config.set_dtype_policy("mixed_bfloat16"), dtype="float32" of head, TF_ENABLE_ONEDNN_OPTS=0 and '
        "jit_compile=True"
    )


def test_what_to_do_first_is_next(comparison: Judging, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rejected = _with(
        document_of(comparison), "mixed_float16", verdicts=_all("inconclusive"), open=None, reasons=()
    ).model_copy(update={"baseline_reasons": None})
    assert answer_of(rejected).next == "nothing here names a setting to try; the report has the reasons"
    emulated = _with(rejected, "mixed_float16", reasons=(_reason("emulated_float16"),))
    assert answer_of(emulated).next.startswith(
        "no setting can help here, because this CPU emulates the precision of mixed_f"
    )
    of_training = _reason("model_too_small").model_copy(update={"change": Remedy(key="variants.float32.xla", to=True)})
    tried = rejected.model_copy(update={"baseline_reasons": (of_training,)})
    assert answer_of(tried).rows[-2] == ("Next", "see what can be tried: halfstep advise")
    served = _with_best(tried)
    assert answer_of(served).next == "load data/serve/models/float32-0/litert.tflite"
    short = OpenQuestion(text="training of float16 (about 4 min)", of="training", settings={"profile.processes": 9})
    longer = answer_of(_with(served, "mixed_float16", open=(short,)))
    assert (longer.open, longer.next) == ("training of float16 (about 4 min)", "measure longer")
    assert longer.command == "dvc exp run -S ++profile.processes=9"
    of_format = short.model_copy(update={"text": "inference of float16 (about 4 min)", "of": "inference"})
    assert answer_of(_with(served, "mixed_float16", open=(of_format,))).open == "nothing worth more time"
    busy = OpenQuestion(text="all of it: other programs ran", again="profile")
    again = answer_of(_with(served, "mixed_float16", open=(short, busy)))
    assert again.open == "all of it: other programs ran; training of float16 (about 4 min)"
    assert (again.next, again.command) == (
        "stop other programs, then measure again",
        "dvc repro -f -s profile && dvc repro",
    )
    assert again.long_command == again.command
    assert again.rows[-2] == ("Next", again.next)


def test_commands_are_those_of_judge_where_it_runs_the_pipeline(
    comparison: Judging, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    files.write_json(files.JUDGE_CALL, {"known": ["train.py"], "own": ["--epochs", "3"]})
    assert rerun.again("profile") == "halfstep judge train.py --again profile -- --epochs 3"
    workspace = tmp_path / files.JUDGE
    workspace.mkdir(parents=True)
    monkeypatch.chdir(workspace)
    for command in ("`dvc repro -f -s profile && dvc repro`", "`dvc repro -f -s profile`, then `dvc repro`"):
        assert rerun.in_its_words(f"Measure again: {command}.") == (
            "Measure again: the same command with `--again profile`."
        )
    assert rerun.in_its_words("run `dvc repro`") == "run the same command"
