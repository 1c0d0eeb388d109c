"""What can be tried: the changes that the reasons of a comparison name, as new variants."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from halfstep.advise.remedies import Trial, trial_of
from halfstep.errors import AdviceError
from halfstep.params.schema import Params
from halfstep.results.comparison import Comparison, Reason, Remedy
from halfstep.words.text import TRAIN

# What is done for every experiment beside its trainings and the timing: imports, preparation, comparison.
OVERHEAD_S = 30.0


@dataclass(frozen=True)
class Advice:
    """A reason, and the change that it names.

    Attributes:
        variant: that the reason is about.
        reason: from the comparison.
        remedy: None where nothing here can be tried.
        trial: of the remedy; None if it cannot be tried.
        cost_s: seconds to find out, as long as the last run took for the same work; None if unknown.
        because: why it cannot be tried; None if it can, and without a remedy.
    """

    variant: str
    reason: Reason
    remedy: Remedy | None = None
    trial: Trial | None = None
    cost_s: float | None = None
    because: str | None = None

    @property
    def at_most(self) -> float | None:
        """The largest speed-up that it may bring; None if unknown."""
        return self.remedy.at_most if self.remedy else None

    def as_json(self) -> dict[str, Any]:
        """As `--json` prints it."""
        return {
            "variant": self.variant,
            "reason": {"code": self.reason.code, "text": self.reason.text, "advice": self.reason.advice},
            "change": None if self.remedy is None else self.remedy.model_dump(mode="json", by_alias=True),
            "new_variant": None if self.trial is None else self.trial.name,
            "command": None if self.trial is None else self.trial.command,
            "cost_s": None if self.cost_s is None else round(self.cost_s),
            "because": self.because,
        }


def advice_of(comparison: Comparison, settings: Params) -> list[Advice]:
    """The advice of a comparison: what can be tried, the most promising first, then the rest.

    Args:
        comparison: with the reasons.
        settings: all parameters, with the entries of these variants.
    """
    advice_by_key: dict[tuple[str, str], Advice] = {}
    for variant, reasons in comparison.reasons.items():
        for reason in (reason for reason in reasons if reason.measure == TRAIN):
            for advice in _of_reason(variant, reason, comparison, settings):
                remedy = advice.remedy
                key = (variant, reason.code) if remedy is None else (remedy.key, str(remedy.to))
                advice_by_key.setdefault(key, advice)
    return sorted(advice_by_key.values(), key=lambda advice: (advice.trial is None, -(advice.at_most or 0.0)))


def _of_reason(variant: str, reason: Reason, comparison: Comparison, settings: Params) -> Iterator[Advice]:
    remedies = [change for change in (reason.change, *(reason.more_changes or ())) if change is not None]
    if not remedies:
        yield Advice(variant, reason)
    for remedy in remedies:
        try:
            trial = trial_of(remedy, settings)
        except AdviceError as error:
            yield Advice(variant, reason, remedy, because=str(error))
        else:
            yield Advice(variant, reason, remedy, trial, cost_s(comparison, settings))


def cost_s(comparison: Comparison, settings: Params) -> float | None:
    """Seconds of an experiment with one more variant; None where the last run does not tell."""
    protocol = comparison.setup.protocol if comparison.setup else None
    if protocol is None or protocol.stage_seconds is None:
        return None
    trainings = list((comparison.train_time_s or {}).values())
    training_s = max(trainings, default=0.0) * len(settings.train.seeds)
    arms = len(settings.train.variants) + 1
    return OVERHEAD_S + training_s + protocol.stage_seconds * (arms + 1) / arms
