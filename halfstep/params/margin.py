"""The names of scores, and the margin of quality, which is in units of the score."""

from __future__ import annotations

import re

from halfstep.errors import ParameterError
from halfstep.params.schema import CompareParams

ACCURACY = "accuracy"
NEGATIVE_LOSS = "neg_loss"  # of a script; `compare` finds its margin
MEAN_ACCURACY = "mean_accuracy"  # of an example with many predictions
ACCURACY_MARGIN = 0.01  # one percentage point
SCORE_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,49}")
# Parts of names for which lower is better.
_LOWER_IS_BETTER = frozenset({"loss", "error", "mae", "mse", "rmse", "mape", "perplexity", "wer", "cer", "nll", "fid"})


def quality_margin_for(score_name: str, compare: CompareParams) -> float:
    """The largest loss of a score that still counts as the same: as declared, or 0.01 for accuracy.

    Raises:
        ParameterError: none is declared for another score, or that for accuracy, a fraction, is 1 or more.
    """
    margin = compare.quality_margin
    if score_name in (ACCURACY, MEAN_ACCURACY):
        if margin is not None and margin >= 1:
            raise ParameterError(accuracy_margin_line(margin))
        return ACCURACY_MARGIN if margin is None else margin
    if margin is None:
        raise ParameterError(
            f"compare.quality_margin is null, which only accuracy may leave so; declare the largest loss of "
            f"{score_name} that still counts as the same, in its units: a number above 0"
        )
    return margin


def accuracy_margin_line(margin: float) -> str:
    """The message for a margin that no accuracy can have."""
    return f"compare.quality_margin is {margin:g}; for accuracy, a fraction, it must be above 0 and below 1"


def score_name_problem(name: object) -> str | None:
    """Why a score may not have this name; None if it may."""
    if not isinstance(name, str) or not SCORE_NAME.fullmatch(name):
        return "it must have letters, digits and _, at most 50, with a letter first"
    words = name.lower().split("_")
    if words[0] not in ("neg", "negative") and (matches := sorted(_LOWER_IS_BETTER.intersection(words))):
        return f"'{matches[0]}' is better when it is lower: return its negative, and name it 'neg_{name}'"
    return None
