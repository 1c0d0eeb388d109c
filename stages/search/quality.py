"""What the baseline's trained weights score in the precision of a candidate, on the validation data."""

from __future__ import annotations

import numpy as np

from stages import files
from stages.params import Params, Variant
from stages.prepare.trials import run_trial
from stages.results.training import read_metrics
from stages.search.needed import TRYING
from stages.tasks.spec import TaskSpec

_Z = 1.96  # of a 95 % interval


def change_of(settings: Params, variant: str, entry: Variant) -> dict[str, float] | None:
    """The change of the mean score from the baseline's precision, with its 95 % interval; None where it is not known.

    Args:
        settings: all parameters.
        variant: the variant that is searched.
        entry: the candidate's.
    """
    baseline, seed = settings.compare.baseline, settings.train.seeds[0]
    metrics = read_metrics(baseline, seed)
    if metrics.not_trained or metrics.failed:
        return None
    weights = files.train_dir(baseline, seed).absolute()
    entries = {baseline: settings.variants[baseline], variant: entry}
    found = [
        run_trial(f"{name}-{seed}", TRYING, item, TaskSpec.of(settings, name), seed, weights)
        for name, item in entries.items()
    ]
    if any(not isinstance(scores, np.ndarray) for scores in found):
        return None
    changes = found[1] - found[0]
    if not np.isfinite(changes).all():
        return {"mean": float("-inf"), "low": float("-inf"), "high": float("-inf")}
    half = _Z * float(changes.std(ddof=1)) / len(changes) ** 0.5 if len(changes) > 1 else 0.0
    return {"mean": float(changes.mean()), "low": float(changes.mean()) - half, "high": float(changes.mean()) + half}
