"""User errors and faults, each with the one line that reports it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

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
    )

    tasks = (cases_of_images, cases_of_models, cases_of_own_code)
    modules = (cases_of_params, cases_of_gpus, *tasks, cases_of_results, cases_of_locks)
    return [case for module in modules for case in module.CASES]
