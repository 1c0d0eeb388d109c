"""Lines to paste into a shell that run the pipeline again: DVC's, or, where `halfstep judge` runs it, that command."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from halfstep.system import files

AGAIN = "--again"  # of `halfstep judge`: the stage that runs although nothing has changed
_PLAIN = re.compile(r"(?!(?:true|false|null|inf|nan)$)[a-z_][a-z0-9_]*", re.IGNORECASE)  # text without quotes
_BEFORE_QUOTE = re.compile(r'(\\*)("|$)')
_STAGE_AGAIN = re.compile(r"`dvc repro -f (?:-s )?([\w@.-]+)(?: && dvc repro|`,? (?:and|then) `dvc repro)?`")


def with_values(values: Mapping[str, Any]) -> str:
    """The line that runs the pipeline with other parameters.

    It is `dvc exp run`; in a workspace of `halfstep judge` that program's last call with these parameters, too.

    Args:
        values: by dotted name: text, numbers, true, false, None, lists and mappings of them.
    """
    call = _judge_call()
    if call is None:
        given = (f"++{key}={_text(value, _for_hydra)}" for key, value in values.items())  # it need not be in the file
        return shlex.join(["dvc", "exp", "run", *(part for text in given for part in ("-S", text))])
    given = (f"{key}={_text(value, _for_yaml)}" for key, value in values.items())
    return _judge_line(call, [part for text in given for part in ("--set", text)])


def again(stage: str) -> str:
    """The line that runs a stage although nothing has changed, and then what depends on it."""
    call = _judge_call()
    return f"dvc repro -f -s {stage} && dvc repro" if call is None else _judge_line(call, [AGAIN, stage])


def in_its_words(text: str) -> str:
    """A message for the user; where `halfstep judge` runs the pipeline, it names that command."""
    if files.judged_folder() is None:
        return text
    return _STAGE_AGAIN.sub(rf"the same command with `{AGAIN} \1`", text).replace("`dvc repro`", "the same command")


def _judge_call() -> Mapping[str, Sequence[str]] | None:
    path = files.original_root() / files.JUDGE_CALL
    return files.read_json(path) if path.is_file() else None


def _judge_line(call: Mapping[str, Sequence[str]], more: Sequence[str]) -> str:
    own = ["--", *call["own"]] if call["own"] else []
    return shlex.join(["halfstep", "judge", *call["known"], *more, *own])


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
