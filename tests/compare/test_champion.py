"""Which candidate and which of its trainings is registered."""

from __future__ import annotations

from dataclasses import replace

from stages.compare.champion import best_candidate, best_training
from stages.compare.comparison import Comparison


def test_best_candidate_is_the_fastest_of_those_adopted(comparison: Comparison) -> None:
    rejected, adopted, failed = comparison.candidates
    slower = replace(adopted, speedups=comparison.control)
    assert best_candidate(replace(comparison, candidates=(rejected, slower, adopted, failed))) is adopted
    assert best_candidate(replace(comparison, candidates=(rejected, failed))) is None


def test_best_training_has_the_highest_final_validation_accuracy(comparison: Comparison) -> None:
    result = comparison.candidates[1].result
    final = {item.seed: item.history["val_accuracy"].iloc[-1] for item in result.trainings if item.history is not None}
    assert best_training(result).seed == max(final, key=final.__getitem__)
