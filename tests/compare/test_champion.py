"""Which candidate and which of its trainings is registered."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from stages import files
from stages.compare import champion
from stages.compare.champion import best_candidate, best_training, register_best
from stages.compare.judge import document_of
from stages.compare.judging import Judging
from stages.errors import ComparisonError


def test_best_candidate_is_the_fastest_of_those_adopted(comparison: Judging) -> None:
    rejected, adopted, failed = comparison.candidates
    slower = replace(adopted, result=replace(adopted.result, variant="slower"), speedups=comparison.control)
    assert (
        best_candidate(document_of(replace(comparison, candidates=(rejected, adopted, slower, failed))))
        == adopted.variant
    )
    assert best_candidate(document_of(replace(comparison, candidates=(rejected, failed)))) is None


def test_best_training_has_the_highest_final_validation_accuracy(comparison: Judging) -> None:
    result = comparison.candidates[1].result
    final = {item.seed: item.history["val_accuracy"].iloc[-1] for item in result.trainings if item.history is not None}
    assert best_training(result.trainings, "accuracy").seed == max(final, key=final.__getitem__)


def test_weights_without_a_model_are_not_registered(comparison: Judging) -> None:
    best = comparison.candidates[1]
    folder = files.train_dir(best.variant, best_training(best.result.trainings, "accuracy").seed)
    (folder / "model.keras").rename(folder / "model.weights.h5")
    with pytest.raises(ComparisonError, match=rf"'classifier' is unchanged: .*{folder.name}/model\.weights\.h5 holds"):
        register_best("classifier", document_of(comparison), comparison.study, SimpleNamespace())  # type: ignore[arg-type]


@pytest.mark.parametrize("adopted", [1, 2])
def test_line_says_that_luck_favours_the_best_of_several(
    comparison: Judging, monkeypatch: pytest.MonkeyPatch, adopted: int
) -> None:
    monkeypatch.setattr(champion, "register_champion", lambda *_: "3")
    tracker: Any = SimpleNamespace(client=None, find=lambda *_: "a run")
    best = comparison.candidates[1]
    other = replace(best, result=replace(best.result, variant="other"), speedups=comparison.control)
    found = document_of(replace(comparison, candidates=(best, other)[:adopted]))
    line = register_best("classifier", found, comparison.study, tracker)
    assert line.startswith("compare.register: champion of 'classifier' is version 3, mixed_bfloat16 with seed")
    assert ("the fastest of 2 adopted candidates, which luck favours" in line) is (adopted == 2)
    assert "\n" not in line
