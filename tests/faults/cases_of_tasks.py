"""What `environment` rejects of the user's own tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.faults.cases import Arrange, Case

GOOD = "def build(*, batch_size, seed, width=8): ..."
ANY = "def build(**options): ..."
HOSTILE = "a\x1b[2Jb"


def _own(source: str) -> Arrange:
    def arrange(root: Path, _: pytest.MonkeyPatch) -> None:
        (root / "own.py").write_text(source, encoding="utf-8")

    return arrange


def rejected(what: str, fragments: str | tuple[str, ...], source: str = GOOD, **task: Any) -> Case:
    """A case that `environment` must reject with status 2."""
    lines = (fragments,) if isinstance(fragments, str) else fragments
    params = {"task": {"name": "own:build"} | task}
    return Case(f"a task: {what}", "environment", lines, params, _own(source), status=2)


CASES = [
    rejected("a word instead of a function", "it must be images, or package.module:function", name="regression"),
    rejected("no such module", "there is no module 'gone' next to params.yaml", name="gone:build"),
    rejected("no such function", "own.py does not define 'make'", name="own:make"),
    rejected("a syntax error", "own.py is not valid Python: invalid syntax (own.py, line 2)", "x = 1\nx ="),
    rejected("an argument that halfstep passes", "set train.seeds instead", arguments={"seed": 1}),
    rejected("an argument with control characters", "contains 'a\\x1b[2Jb'; a name has", ANY, arguments={HOSTILE: 1}),
    rejected("a folder that does not exist", "task.path is 'gone', which does not exist", path="gone"),
    rejected("a file as folder", "task.path is 'own.py', which is not a folder", path="own.py"),
    rejected("a path of depends does not exist", "task.depends contains 'gone', which does not", depends=["gone"]),
    rejected("results in depends", "contains results of the pipeline; list only", depends=["."]),
    *(
        rejected(
            f"{path} in depends", "is part of /proc or /sys, or is /dev: its contents are not fixed", depends=[path]
        )
        for path in ("/proc/cpuinfo", "/proc", "/sys/kernel")
    ),
    rejected("a device in depends", "is neither a file nor a folder; remove it", depends=["/dev/null"]),
    rejected(
        "several errors at once",
        ("task.depends contains 'gone'", "task.arguments contains 'seed'", "task.path is 'gone'"),
        path="gone",
        depends=["gone"],
        arguments={"seed": 1},
    ),
]
