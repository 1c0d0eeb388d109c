"""What tries a change that a reason names: a new variant, and the command line that measures it beside the others."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from halfstep.errors import AdviceError
from halfstep.params import Params, Variant
from halfstep.params.rules import broken_rules
from halfstep.results.comparison import Remedy
from halfstep.system import files

_KEY = re.compile(r"variants\.([a-z][a-z0-9_]*)\.([a-z0-9_]+)")
_NO_NAME = re.compile(r"[^a-z0-9]+")
_PLAIN = re.compile(r"(?!(?:true|false|null|inf|nan)$)[a-z_][a-z0-9_]*", re.IGNORECASE)  # text without quotes
_BEFORE_QUOTE = re.compile(r'(\\*)("|$)')


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
        return command_line({f"variants.{self.name}": entry, "train.variants": self.settings.train.variants})


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
    needs_onednn = remedy.to == "mixed_bfloat16" and not before.onednn  # TensorFlow's own kernels emulate it
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


def command_line(values: Mapping[str, Any]) -> str:
    """The line that runs the pipeline with other parameters, to paste into a shell.

    It is `dvc exp run`; in a workspace of `halfstep judge` that program's last call with these parameters, too.

    Args:
        values: by dotted name: text, numbers, true, false, None, lists and mappings of them.
    """
    call = files.original_root() / files.JUDGE_CALL
    if not call.is_file():
        given = (f"++{key}={_text(value, _for_hydra)}" for key, value in values.items())  # it need not be in the file
        return shlex.join(["dvc", "exp", "run", *(part for text in given for part in ("-S", text))])
    arguments: dict[str, list[str]] = files.read_json(call)
    given = (f"{key}={_text(value, _for_yaml)}" for key, value in values.items())
    command = ["halfstep", "judge", *arguments["known"], *(part for text in given for part in ("--set", text))]
    return shlex.join([*command, *(["--", *arguments["own"]] if arguments["own"] else [])])


def _text(value: Any, quoted: Callable[[str], str]) -> str:
    """A value as Hydra and YAML both read it, but for the text in quotes."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {_text(item, quoted)}' for key, item in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(_text(item, quoted) for item in value)}]"
    if isinstance(value, str):
        return value if _PLAIN.fullmatch(value) else quoted(value)
    return json.dumps(value)


def _for_hydra(text: str) -> str:
    """Backslashes count only before a quote and at the end; `${` would name another value."""
    escaped = _BEFORE_QUOTE.sub(lambda match: match[1] * 2 + ('\\"' if match[2] else ""), text)
    return f'"{escaped}"'.replace("${", r"\${")


def _for_yaml(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
