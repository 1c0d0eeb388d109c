"""What the reasons of a comparison advise, as variants and lines to paste."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from halfstep.advise.advice import Advice, advice_of
from halfstep.advise.command import main
from halfstep.params.schema import Params, Variant
from halfstep.results.comparison import COMPARISON, Comparison, Reason, Remedy
from halfstep.system import files

COMMAND = (
    "dvc exp run -S '++variants.float32_cache_input_on={policy: float32, cache_input: true, parent: float32}' "
    "-S '++train.variants=[float32, mixed_float16, mixed_bfloat16, float32_cache_input_on]'"
)
REASON: dict[str, Any] = {"text": "It waits.", "evidence": {}, "advice": "Wait less."}


def reason(code: str, *changes: tuple[str, Any, Any, float | None], measure: str = "train") -> Reason:
    remedies = [Remedy(key=key, before=before, to=to, at_most=at_most) for key, before, to, at_most in changes]
    return Reason(
        code=code,
        measure=measure,
        change=remedies[0] if remedies else None,
        more_changes=tuple(remedies[1:]) or None,
        **REASON,
    )


def comparison(baseline: tuple[Reason, ...] = (), **candidates: tuple[Reason, ...]) -> Comparison:
    return Comparison(
        baseline="float32",
        environment={"device": "a machine"},
        control={},
        noise_floor={},
        min_speedup=1.05,
        baseline_reasons=baseline or None,
        candidates={
            name: {"verdict": "reject", "sentence": "No.", "reasons": reasons} for name, reasons in candidates.items()
        },
    )


def advice(comparison: Comparison, settings: Params | None = None) -> list[Advice]:
    return advice_of(comparison, settings or Params())


def test_change_is_a_variant_that_names_its_parent() -> None:
    waits = reason("input_bound", ("variants.float32.cache_input", None, True, 1.4))
    (suggestion,) = advice(comparison((waits,)))
    assert suggestion.trial is not None
    assert suggestion.trial.name == "float32_cache_input_on"
    assert suggestion.trial.entry == Variant(policy="float32", cache_input=True, parent="float32")


def test_most_promising_change_is_first_and_what_cannot_be_tried_is_last() -> None:
    suggestions = advice(
        comparison(
            (reason("onednn_off", ("variants.float32.xla", None, True, None)),),
            mixed_bfloat16=(
                reason("no_16bit_instructions"),
                reason("small_batch", ("variants.mixed_bfloat16.batch_size", None, 128, 2.5)),
                reason("input_bound", ("variants.mixed_bfloat16.input_threads", None, 4, 1.2)),
                reason("stalls", measure="inference_b1"),  # of inference, which no variant is made for
            ),
        )
    )
    assert [item.trial.name if item.trial else None for item in suggestions] == [
        "mixed_bfloat16_batch_128",
        "mixed_bfloat16_input_threads_4",
        "float32_xla_on",
        None,
    ]
    assert suggestions[-1].reason.code == "no_16bit_instructions"


def test_change_that_cannot_be_tried_is_listed_with_the_cause() -> None:
    (suggestion,) = advice(comparison((reason("x", ("variants.removed.xla", None, True, 1.4)),)))
    assert (suggestion.trial, suggestion.because) == (None, "variants.removed.xla is not in params.yaml")


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write_params: Callable[..., Path]) -> Path:
    """A working folder with a comparison."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["advise"])
    write_params()
    files.COMPARE.mkdir(parents=True)
    comparison((reason("input_bound", ("variants.float32.cache_input", None, True, 1.4)),)).write(COMPARISON)
    return tmp_path


def test_list_is_printed(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main() == 0
    change, line = capsys.readouterr().out.splitlines()[:2]
    assert change == "variants.float32.cache_input: null → true (float32, input_bound; brings at most 1.40×)"
    assert line == f"    {COMMAND}"


def test_list_is_json(results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["advise", "--json"])
    assert main() == 0
    (suggestion,) = json.loads(capsys.readouterr().out)
    assert (suggestion["new_variant"], suggestion["command"]) == ("float32_cache_input_on", COMMAND)
    change = {"key": "variants.float32.cache_input", "from": None, "to": True, "layers": None, "at_most": 1.4}
    assert suggestion["change"] == change


def test_reason_without_a_change_says_so_in_the_file(results: Path) -> None:
    comparison(mixed_bfloat16=(reason("no_16bit_instructions"),)).write(COMPARISON)
    (entry,) = json.loads(COMPARISON.read_text())["candidates"]["mixed_bfloat16"]["reasons"]
    assert entry["change"] is None


def test_without_results_there_is_one_line(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    COMPARISON.unlink()
    assert main() != 0
    (line,) = capsys.readouterr().err.splitlines()
    assert "dvc repro" in line
