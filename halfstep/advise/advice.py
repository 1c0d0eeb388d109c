"""What can be tried: the changes that the reasons of a comparison name, as new variants."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from halfstep.compare.rules.layer_sets import MOST_SETS
from halfstep.params import Params, Variant
from halfstep.params.rules import broken_rules
from halfstep.results.comparison import Comparison, Reason, Remedy
from halfstep.text import TRAIN

_KEY = re.compile(r"variants\.([a-z][a-z0-9_]*)\.([a-z0-9_]+)")
# What is done for every experiment beside its trainings and the timing: imports, preparation, comparison.
OVERHEAD_S = 30.0
_NO_NAME = re.compile(r"[^a-z0-9]+")


@dataclass(frozen=True)
class Advice:
    """A reason, and the change that it names.

    Attributes:
        parent: the variant that is changed, or that the reason is about.
        reason: from the comparison.
        remedy: None where nothing here can be tried.
        variant: name of the new variant; None without a remedy, or where there is one with this change already.
        entry: its entry of `variants`.
        along: other settings that the change needs.
        cost_s: seconds to find out, as long as the last run took for the same work.
        because: why it cannot be tried; None if it can.
    """

    parent: str
    reason: Reason
    remedy: Remedy | None = None
    variant: str | None = None
    entry: Variant | None = None
    along: Mapping[str, bool] = field(default_factory=dict)
    cost_s: float | None = None
    because: str | None = None

    @property
    def at_most(self) -> float | None:
        """The largest speed-up that it may bring; None if unknown."""
        return self.remedy.at_most if self.remedy else None

    @property
    def can_be_tried(self) -> bool:
        """Whether there is an experiment for it."""
        return self.entry is not None and self.because is None

    def as_json(self, number: int | None) -> dict[str, Any]:
        """As `--json` prints it; `number` is what `python -m halfstep advise` takes, None if it cannot be tried."""
        change = None if self.remedy is None else self.remedy.model_dump(mode="json", by_alias=True)
        return {
            "number": number,
            "variant": self.parent,
            "reason": {"code": self.reason.code, "text": self.reason.text, "advice": self.reason.advice},
            "change": change,
            "new_variant": self.variant,
            "cost_s": None if self.cost_s is None else round(self.cost_s),
            "because": self.because,
        }


def advice_of(comparison: Comparison, settings: Params, kept: Mapping[str, str] | None = None) -> list[Advice]:
    """The advice of a comparison: what can be tried, the most promising first, then the rest.

    Args:
        comparison: with the reasons.
        settings: all parameters, with the entries of these variants.
        kept: by variant a better one that was made from it, and that further changes are made of.
    """
    advice_by_key: dict[tuple[str, str, str], Advice] = {}
    for parent, reasons in comparison.reasons.items():
        for reason in (reason for reason in reasons if reason.measure == TRAIN):
            for advice in _of_reason(parent, reason, comparison, settings, kept or {}):
                remedy = advice.remedy
                key = ("", parent, reason.code) if remedy is None else (advice.parent, remedy.key, str(remedy.to))
                advice_by_key.setdefault(key, advice)
    return sorted(advice_by_key.values(), key=lambda advice: (not advice.can_be_tried, -(advice.at_most or 0.0)))


def alternatives(chosen: Advice, possible: Sequence[Advice]) -> list[Advice]:
    """A change, and those that exclude it: other layers of the same variant in float32, classes before single ones."""
    if chosen.remedy is None or not isinstance(chosen.remedy.to, tuple):
        return [chosen]
    choices = [advice for advice in possible if advice.remedy and advice.remedy.key == chosen.remedy.key]
    return sorted(choices, key=lambda advice: advice.remedy is None or advice.remedy.layers is None)[:MOST_SETS]


def _of_reason(
    parent: str, reason: Reason, comparison: Comparison, settings: Params, kept: Mapping[str, str]
) -> Iterator[Advice]:
    remedies = [change for change in (reason.change, *(reason.more_changes or ())) if change is not None]
    if not remedies:
        yield Advice(parent, reason)
    for remedy in remedies:
        match = _KEY.fullmatch(remedy.key)
        if match is None or match[1] not in settings.variants:
            yield Advice(parent, reason, remedy, because=f"{remedy.key} is not in params.yaml")
            continue
        name, key = match[1], match[2]
        newest = _newest(name, kept)
        if newest == name:
            yield _as_variant(name, key, reason, remedy, comparison, settings)
        elif getattr(settings.variants[newest], key) == getattr(settings.variants[name], key):
            # what it may bring is known of the older one only
            carried = remedy.model_copy(update={"key": f"variants.{newest}.{key}", "at_most": None})
            yield _as_variant(newest, key, reason, carried, comparison, settings)


def _newest(name: str, kept: Mapping[str, str]) -> str:
    """The last of the variants that were made from one and kept."""
    while name in kept:
        name = kept[name]
    return name


def _as_variant(
    parent: str, key: str, reason: Reason, remedy: Remedy, comparison: Comparison, settings: Params
) -> Advice:
    """The advice as a new variant, or why there is none."""
    before = settings.variants[parent]
    needs_onednn = remedy.to == "mixed_bfloat16" and not before.onednn  # TensorFlow's own kernels emulate it
    along = {"onednn": True} if needs_onednn else {}
    to = (*before.float32_layers, *remedy.to) if isinstance(remedy.to, tuple) else remedy.to
    entry = Variant.model_validate(before.model_dump() | {key: to, "parent": parent, **along})
    name, same = f"{parent}_{suffix(key, remedy.to, remedy.layers)}", _same(entry, settings)
    advice = Advice(parent, reason, remedy, name, entry, along, cost_s(comparison, settings))
    if same is not None:
        return Advice(parent, reason, remedy, because=f"{same} has this change already")
    if problems := list(broken_rules(with_variants(settings, {name: entry}))):
        return Advice(parent, reason, remedy, because=problems[0])
    return advice


def suffix(key: str, value: bool | int | str | tuple[str, ...] | None, layers: str | None = None) -> str:
    """What a changed setting adds to a variant's name."""
    if isinstance(value, tuple):
        more = f"_and_{len(value) - 1}_more" if len(value) > 1 else ""
        return f"{_NO_NAME.sub('_', (layers or value[0] + more).lower())}_in_float32"
    if isinstance(value, bool):
        return f"{key}_{'on' if value else 'off'}"
    if key == "batch_size":
        return f"batch_{value}"
    return f"{key}_{value}" if key != "policy" else str(value)


def _same(entry: Variant, settings: Params) -> str | None:
    """A variant that is measured and has these settings already; None if there is none.

    Where only the policy changes, any variant with the new policy counts.
    """
    parent = settings.variants[entry.parent or ""]
    for name in settings.train.variants:
        other = settings.variants[name]
        if other.model_dump(exclude={"parent"}) == entry.model_dump(exclude={"parent"}):
            return name
        if entry.policy != parent.policy and other.policy == entry.policy:
            return name
    return None


def with_variants(settings: Params, entries: Mapping[str, Variant]) -> Params:
    """The parameters with more variants, which are trained and compared too."""
    listed = (*settings.train.variants, *(name for name in entries if name not in settings.train.variants))
    train = settings.train.model_copy(update={"variants": listed})
    return settings.model_copy(update={"variants": {**settings.variants, **entries}, "train": train})


def cost_s(comparison: Comparison, settings: Params) -> float | None:
    """Seconds of an experiment with one more variant; None where the last run does not tell."""
    protocol = comparison.setup.protocol if comparison.setup else None
    if protocol is None or protocol.stage_seconds is None:
        return None
    trainings = list((comparison.train_time_s or {}).values())
    training_s = max(trainings, default=0.0) * len(settings.train.seeds)
    arms = len(settings.train.variants) + 1
    return OVERHEAD_S + training_s + protocol.stage_seconds * (arms + 1) / arms
