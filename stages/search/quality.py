"""What a candidate scores on the validation data: with the baseline's trained weights, and after its own training."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stages import files
from stages.compare.study import margin_of_gain
from stages.params import Params, Variant, quality_margin_for
from stages.prepare.trials import run_trial
from stages.results.comparison import Change
from stages.results.task import TASK_INFO, TaskInfo
from stages.results.training import read_metrics
from stages.search.needed import TRYING
from stages.stats.scores import score_change
from stages.tasks.spec import TaskSpec

Scores = NDArray[np.float64]


def is_trained(settings: Params) -> bool:
    """Whether the baseline has trained weights."""
    metrics = read_metrics(settings.compare.baseline, settings.train.seeds[0])
    return not (metrics.not_trained or metrics.failed)


def margin_of(settings: Params) -> float:
    """The largest loss of the score that still counts as the same, as `compare` has it; 0 where it has none."""
    if settings.compare.quality_margin is None and settings.task.script is not None:
        found = margin_of_gain([read_metrics(settings.compare.baseline, seed) for seed in settings.train.seeds])
        if found is not None:
            return found
    name = TaskInfo.read(TASK_INFO).score_name if settings.task.is_own else "accuracy"
    return quality_margin_for(name, settings.compare)


def scores_with_baseline_weights(settings: Params, variant: str, entry: Variant) -> Scores | None:
    """The score of each validation example in a variant's precision; None where the task has no such scores.

    Args:
        settings: all parameters.
        variant: the name of the entry, or of what it was made from.
        entry: an entry of `variants`.
    """
    seed = settings.train.seeds[0]
    weights = files.train_dir(settings.compare.baseline, seed).absolute()
    found = run_trial(f"{variant}-{seed}", TRYING, entry, TaskSpec.of(settings, variant), seed, weights)
    return found if isinstance(found, np.ndarray) else None


def change_of(baseline: Scores | None, candidate: Scores | None) -> Change | None:
    """The change of the mean score with its 95 % interval; None where it is not known, or a score is not finite."""
    if baseline is None or candidate is None or not np.isfinite((baseline, candidate)).all():
        return None
    found = score_change(baseline[None], candidate[None])
    return Change(value=found.delta, low=found.low, high=found.high, n=found.examples)
