"""What tries a change that a reason names: a new variant, and the command line that measures it beside the others."""

from __future__ import annotations

import re
from dataclasses import dataclass

from halfstep.errors import AdviceError
from halfstep.params.rules import broken_rules
from halfstep.params.schema import Params, Variant
from halfstep.results.comparison import Remedy
from halfstep.system import rerun

_KEY = re.compile(r"variants\.([a-z][a-z0-9_]*)\.([a-z0-9_]+)")
_NO_NAME = re.compile(r"[^a-z0-9]+")


@dataclass(frozen=True)
class Trial:
    """A change as a new variant, which is measured beside the others.

    Attributes:
        name: of the variant.
        entry: of `variants`; its `parent` is the variant that is changed.
        settings: all parameters, with this variant.
    """

    name: str
    entry: Variant
    settings: Params

    @property
    def command(self) -> str:
        """The line that measures it, to paste into a shell."""
        entry = self.entry.model_dump(mode="json", exclude_defaults=True)
        return rerun.with_values({f"variants.{self.name}": entry, "train.variants": self.settings.train.variants})


def trial_of(remedy: Remedy, settings: Params) -> Trial:
    """The new variant with a change.

    Args:
        remedy: the change of one setting of a variant.
        settings: all parameters, in which that variant is.

    Raises:
        AdviceError: it cannot be tried: the variant or such a value is not allowed, or another variant has it already.
    """
    match = _KEY.fullmatch(remedy.key)
    if match is None or match[1] not in settings.variants:
        raise AdviceError(f"{remedy.key} is not in params.yaml")
    parent, key = match[1], match[2]
    before = settings.variants[parent]
    needs_onednn = remedy.to == "mixed_bfloat16" and before.onednn is False  # TensorFlow's own kernels emulate it
    to = (*before.float32_layers, *remedy.to) if isinstance(remedy.to, tuple) else remedy.to
    changes = {key: to, "parent": parent} | ({"onednn": True} if needs_onednn else {})
    entry = Variant.model_validate(before.model_dump() | changes)
    if (same := _same(entry, settings)) is not None:
        raise AdviceError(f"{same} has this change already")
    name = f"{parent}_{suffix(key, remedy.to, remedy.layers)}"
    together = with_variant(settings, name, entry)
    if problems := list(broken_rules(together)):
        raise AdviceError(problems[0])
    return Trial(name, entry, together)


def with_variant(settings: Params, name: str, entry: Variant) -> Params:
    """The parameters with one more variant, which is trained and compared too."""
    train = settings.train.model_copy(update={"variants": (*settings.train.variants, name)})
    return settings.model_copy(update={"variants": {**settings.variants, name: entry}, "train": train})


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
