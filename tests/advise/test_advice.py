"""What the reasons of a comparison advise, as variants that can be tried."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from halfstep import files
from halfstep.advise import experiment
from halfstep.advise.advice import Advice, advice_of, suffix, with_variants
from halfstep.advise.command import main
from halfstep.params import Params, Variant
from halfstep.results.comparison import COMPARISON, Comparison, MeasuredSpeedup, OverParent, Reason, Remedy

TIMES = {"rounds": 8, "typical_ratio": 1.3, "baseline_time_ms": 13.0, "candidate_time_ms": 10.0}
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
    assert suggestion.can_be_tried
    assert suggestion.variant == "float32_cache_input_on"
    assert suggestion.entry == Variant(policy="float32", cache_input=True, parent="float32")


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
    assert [item.variant for item in suggestions] == [
        "mixed_bfloat16_batch_128",
        "mixed_bfloat16_input_threads_4",
        "float32_xla_on",
        None,
    ]
    assert suggestions[-1].reason.code == "no_16bit_instructions"


def test_changes_of_what_was_improved_are_made_of_the_better_variant() -> None:
    waits = reason(
        "input_bound", ("variants.float32.input_threads", None, 4, 1.3), ("variants.float32.xla", None, True, 1.2)
    )
    better = Variant(policy="float32", input_threads=8, parent="float32")
    settings = with_variants(Params(), {"better": better})
    (suggestion,) = advice_of(comparison((waits,)), settings, {"float32": "better"})
    assert suggestion.variant == "better_xla_on"
    assert suggestion.entry == better.model_copy(update={"xla": True, "parent": "better"})
    assert suggestion.remedy == Remedy(key="variants.better.xla", to=True)  # what it may bring is known of float32 only


def test_change_that_another_variant_has_is_not_tried_again() -> None:
    settings = with_variants(Params(), {"faster": Variant(policy="float32", cache_input=True)})
    waits = reason("input_bound", ("variants.float32.cache_input", None, True, 1.4))
    (suggestion,) = advice(comparison((waits,)), settings)
    assert (suggestion.can_be_tried, suggestion.because) == (False, "faster has this change already")
    emulated = reason("emulated_float16", ("variants.mixed_float16.policy", "mixed_float16", "mixed_bfloat16", 1.5))
    (suggestion,) = advice(comparison(mixed_float16=(emulated,)))
    assert suggestion.because == "mixed_bfloat16 has this change already"


def test_change_that_the_parameters_do_not_allow_is_listed_with_the_cause() -> None:
    settings = Params.model_validate({"task": {"name": "mine:build"}, "compare": {"quality_margin": 0.01}})
    (suggestion,) = advice(comparison((reason("x", ("variants.float32.input_threads", None, 4, 1.4)),)), settings)
    assert not suggestion.can_be_tried
    assert "whose input pipeline is its own" in str(suggestion.because)
    (gone,) = advice(comparison((reason("x", ("variants.removed.xla", None, True, 1.4)),)))
    assert gone.because == "variants.removed.xla is not in params.yaml"


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("batch_size", 128, "batch_128"),
        ("xla", True, "xla_on"),
        ("onednn", False, "onednn_off"),
        ("policy", "mixed_bfloat16", "mixed_bfloat16"),
        ("gpu_thread_mode", "gpu_private", "gpu_thread_mode_gpu_private"),
        ("input_threads", 4, "input_threads_4"),
    ],
)
def test_name_of_a_variant_says_what_was_changed(key: str, value: Any, expected: str) -> None:
    assert suffix(key, value) == expected


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write_params: Callable[..., Path]) -> Path:
    """A working folder with a comparison, which is no git repository."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["advise"])
    write_params()
    files.COMPARE.mkdir(parents=True)
    comparison((reason("input_bound", ("variants.float32.cache_input", None, True, 1.4)),)).write(COMPARISON)
    return tmp_path


def test_list_is_printed(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main() == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "cache_input: null → true" in printed
    assert "1.40×" in printed


def test_list_is_json(results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["advise", "--json"])
    assert main() == 0
    (suggestion,) = json.loads(capsys.readouterr().out)
    assert (suggestion["number"], suggestion["new_variant"]) == (1, "float32_cache_input_on")
    change = {"key": "variants.float32.cache_input", "from": None, "to": True, "layers": None, "at_most": 1.4}
    assert suggestion["change"] == change


def test_reason_without_a_change_says_so_in_the_file(results: Path) -> None:
    comparison(mixed_bfloat16=(reason("no_16bit_instructions"),)).write(COMPARISON)
    (entry,) = json.loads(COMPARISON.read_text())["candidates"]["mixed_bfloat16"]["reasons"]
    assert entry["change"] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["7"], "advice 7 is not there: 1 to 1 can be tried; `python -m halfstep advise` lists them"),
        (["0"], "advice 0 is not there"),
        (["1"], "experiments of DVC need a git repository with a commit"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    results: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.setattr("sys.argv", ["advise", *arguments])
    assert main() == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_without_results_there_is_one_line(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    COMPARISON.unlink()
    assert main() != 0
    (line,) = capsys.readouterr().err.splitlines()
    assert "dvc repro" in line


def answers(
    monkeypatch: pytest.MonkeyPatch,
    brought: dict[str, tuple[float, float]],
    reasons: dict[str, Any],
    failed: tuple[str, ...] = (),
) -> list[str]:
    """Stands for the experiments: a variant's speed-up over its parent, and the reasons that its report gives.

    Those of `failed` are not measured; the speed-up of a change of them is one over the baseline.
    """
    started: list[str] = []

    def run(settings: Params, name: str, overrides: Iterable[str]) -> None:
        listed, *added = overrides
        assert listed == f"train.variants=[{','.join(settings.train.variants)}]"
        variant = next(variant for variant in settings.train.variants if experiment.name_of(variant) == name)
        assert added[-1].startswith(f"+variants.{variant}={{policy:")
        started.append(variant)

    def comparison_of(name: str) -> Comparison:
        variant = name.removeprefix("advise-").replace("-", "_")
        result = comparison(**{variant: tuple(reasons.get(variant, ()))})
        candidate = result.candidates[variant]
        if variant in brought:
            low, high = brought[variant]
            ends = {"low": low, "high": high, "n": 4}
            if any(variant.startswith(name) for name in failed):
                timed = MeasuredSpeedup(value=(low + high) / 2, **ends, **TIMES)
                candidate = candidate.model_copy(update={"speedup": {"train": timed}})
            else:
                over = OverParent(parent="float32", value=(low + high) / 2, low=low, high=high)
                candidate = candidate.model_copy(update={"over_parent": over})
        return result.model_copy(update={"candidates": {variant: candidate}, "failed": failed or None})

    monkeypatch.setattr(experiment, "run", run)
    monkeypatch.setattr(experiment, "comparison_of", comparison_of)
    monkeypatch.setattr(experiment, "remove_clones", lambda: None)
    return started


def test_all_goes_on_from_what_was_kept_until_nothing_adds_enough(
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second is tried on top of the first; the third adds too little, and the fourth may at most add too little."""
    first = reason("input_bound", ("variants.float32.cache_input", None, True, 1.8))
    kept = "float32_cache_input_on"
    then = (
        reason("model_too_small", (f"variants.{kept}.xla", None, True, 1.5)),
        reason("small_batch", (f"variants.{kept}.batch_size", None, 64, 1.2)),
        reason("memory_bound", (f"variants.{kept}.onednn", True, False, 1.01)),
    )
    comparison((first,)).write(COMPARISON)
    brought = {kept: (1.5, 1.7), f"{kept}_xla_on": (0.9, 1.04), f"{kept}_batch_64": (1.06, 1.1)}
    started = answers(monkeypatch, brought, {kept: then})
    monkeypatch.setattr("sys.argv", ["advise", "--all"])
    assert main() == 0
    assert started == list(brought)
    printed = capsys.readouterr().out
    assert f"kept {kept}, {kept}_batch_64 of 3 tried" in printed


def test_of_sets_of_layers_all_are_tried_and_the_best_is_kept(
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Classes come before single layers, and no more than four sets are tried."""
    key = "variants.mixed_bfloat16.float32_layers"
    sets = {
        "conv_in_float32": Remedy(key=key, before=(), to=("conv",), at_most=1.5),
        "all_norm_in_float32": Remedy(key=key, before=(), to=("a", "b"), layers="all Norm", at_most=1.3),
        "all_act_in_float32": Remedy(key=key, before=(), to=("c", "d"), layers="all Act", at_most=1.2),
        "a_in_float32": Remedy(key=key, before=(), to=("a",), at_most=1.19),
        "c_in_float32": Remedy(key=key, before=(), to=("c",), at_most=1.18),
    }
    first, *more = sets.values()
    slow = Reason(code="slow_16bit_ops", change=first, more_changes=tuple(more), **REASON)
    comparison(mixed_bfloat16=(slow,)).write(COMPARISON)
    names = [f"mixed_bfloat16_{name}" for name in sets]
    expected = [names[1], names[2], names[0], names[3]]
    brought = dict(zip(expected, [(1.1, 1.2), (1.3, 1.5), (1.2, 1.3), (0.9, 1.0)], strict=True))
    started = answers(monkeypatch, brought, {})
    monkeypatch.setattr("sys.argv", ["advise", "--all"])
    assert main() == 0
    assert started == expected
    printed = capsys.readouterr().out
    assert "float32_layers: [] → all Norm as mixed_bfloat16_all_norm_in_float32" in printed
    assert f"kept {names[2]} of 4 tried" in printed


def test_layers_of_a_training_that_fails_again_join_those_that_are_kept(
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was not measured is no parent: the last one is compared with the baseline."""
    overflow = reason("arm_failed", ("variants.mixed_float16.float32_layers", (), ("a",), None))
    names = ["mixed_float16_a_in_float32", "mixed_float16_a_in_float32_b_in_float32"]
    again = reason("arm_failed", (f"variants.{names[0]}.float32_layers", ("a",), ("b",), None))
    comparison(mixed_float16=(overflow,)).write(COMPARISON)
    started = answers(monkeypatch, {names[1]: (1.2, 1.4)}, {names[0]: (again,)}, failed=("mixed_float16", names[0]))
    monkeypatch.setattr("sys.argv", ["advise", "--all"])
    assert main() == 0
    assert started == names
    printed = capsys.readouterr().out
    assert f"{names[0]}: could not be compared, dropped" in printed
    assert f"{names[1]}: 1.30× (1.20 to 1.40) over float32, as {names[0]} was not measured, kept" in printed


def test_nothing_is_started_that_does_not_fit_into_the_minutes(
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started = answers(monkeypatch, {}, {})
    monkeypatch.setattr("sys.argv", ["advise", "--all", "--minutes", "-1"])
    assert main() == 0
    assert started == []
    assert "does not fit into --minutes" in capsys.readouterr().out
