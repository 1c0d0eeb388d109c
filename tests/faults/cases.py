"""Mistakes and faults by name, each with the one line that it ends in. `python -m tests.faults.cases` lists them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

Arrange = Callable[[Path, pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Case:
    """One mistake or fault.

    Attributes:
        name: what it is, in words.
        command: the stage that meets it, with its arguments.
        fragments: what standard error must hold, one for each of its lines; `{root}` is the working folder.
        params: the sections of `params.yaml`, or its text.
        arrange: what else is done to the working folder before.
        data: which results stand there: `prepared` images, or a `complete` set up to `compare`.
        status: the exit status.
        skip: why it cannot be tried on this machine; None where it can.
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
    """Every case, in the order of the stages that meet them."""
    from tests.faults import cases_of_images, cases_of_params, cases_of_results

    return [*cases_of_params.CASES, *cases_of_images.CASES, *cases_of_results.CASES]


def main() -> None:
    """Prints every case by stage and name, and how many there are."""
    cases = all_cases()
    for case in cases:
        print(f"{case.command.split()[0]:14} {case.name}")
    counts = ", ".join(f"{count} of {stage}" for stage, count in Counter(c.command.split()[0] for c in cases).items())
    print(f"{len(cases)} cases: {counts}")


if __name__ == "__main__":
    main()
