"""User errors and faults, each with the one line that reports it.

`python -m tests.faults.cases` lists them, and the tests of faults that are not a line of a table: real processes that
crash, are killed or lose their output, edits while a stage runs, locked stores, servers that fail.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

_OF_CASES = "tests/faults/test_bad_input.py"
_TESTS = (
    "tests/faults",
    "tests/inputs/test_snapshot.py",
    "tests/pipeline/test_edits.py",
    "tests/pipeline/test_own_code.py",
    "tests/tracking/test_creation.py",
)
Arrange = Callable[[Path, pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Case:
    """One user error or fault.

    Attributes:
        name: description.
        command: the stage that reports it, with its arguments.
        fragments: text that standard error must contain, one for each of its lines.
        params: sections of `params.yaml`, or its text.
        arrange: prepares the working directory.
        data: which results exist: `none`, `prepared` images, or a `complete` set of inputs of `compare`.
        status: the exit status.
        skip: returns why the case cannot be tested on this machine, or None.
    """

    name: str
    command: str
    fragments: tuple[str, ...]
    params: dict[str, Any] | str = field(default_factory=dict)
    arrange: Arrange | None = None
    data: str = "none"
    status: int = 1
    skip: Callable[[], str | None] = lambda: None


def all_cases() -> list[Case]:
    """All cases, in the order of the stages."""
    from tests.faults import (
        cases_of_gpus,
        cases_of_images,
        cases_of_locks,
        cases_of_models,
        cases_of_own_code,
        cases_of_params,
        cases_of_results,
        cases_of_tasks,
    )

    tasks = (cases_of_images, cases_of_models, cases_of_tasks, cases_of_own_code)
    modules = (cases_of_params, cases_of_gpus, *tasks, cases_of_results, cases_of_locks)
    return [case for module in modules for case in module.CASES]


class _Names:
    """A plugin of pytest that keeps the names of the tests."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Takes the names."""
        self.names = [item.nodeid for item in session.items]


def tests_of_faults() -> list[str]:
    """Names of the tests of faults outside the table."""
    plugin = _Names()
    with redirect_stdout(io.StringIO()):
        pytest.main(["--collect-only", "-qq", "-m", "", "-n", "0", *_TESTS, f"--ignore={_OF_CASES}"], plugins=[plugin])
    return plugin.names


def main() -> None:
    """Prints the stage and name of each case, the names of the tests, and the number of both."""
    cases, tests = all_cases(), tests_of_faults()
    for case in cases:
        print(f"{case.command.split()[0]:14} {case.name}")
    print(*tests, sep="\n")
    counts = ", ".join(f"{count} of {stage}" for stage, count in Counter(c.command.split()[0] for c in cases).items())
    print(f"{len(cases)} cases: {counts}; {len(tests)} tests of faults")


if __name__ == "__main__":
    main()
