"""What a change makes out of date, and what it leaves alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.pipeline.conftest import Checkout

BOTH = {"train@float32-0", "train@mixed_bfloat16-0"}


@dataclass(frozen=True)
class Change:
    name: str
    runs: set[str]
    params: dict[str, Any] = field(default_factory=dict)
    source: str | None = None


# The stages that are out of date at once. Those after them follow where their files come out different.
CHANGES = [
    Change("nothing", set()),
    Change("a variant's entry", {"train@mixed_bfloat16-0", "profile"}, {"variants.mixed_bfloat16.tf32": False}),
    Change("an entry that is not run", {"profile"}, {"variants.mixed_float16.xla": True}),
    Change(
        "another seed",
        {"train@float32-1", "train@mixed_bfloat16-1", "profile", "compare"},
        {"train.seeds": [0, 1]},
    ),
    Change(
        "another variant",
        {"train@mixed_float16-0", "profile", "compare"},
        {"train.variants": ["float32", "mixed_bfloat16", "mixed_float16"]},
    ),
    Change("the learning rate", BOTH | {"profile"}, {"train.learning_rate": 0.001}),
    Change("the timing protocol", {"profile"}, {"profile.rounds": 3}),
    Change("the margin", {"compare"}, {"compare.accuracy_margin": 0.02}),
    Change("the experiment", {"compare"}, {"tracking.experiment": "another"}),
    Change("how images are prepared", {"prepare"}, source="stages/prepare/splitting.py"),
    Change("how networks are built", BOTH | {"profile"}, source="stages/models/parts.py"),
    Change("how runs are logged", set(), source="stages/tracking/runs.py"),
    Change("how mistakes are worded", set(), source="stages/errors.py"),
    Change("how the report is written", {"compare"}, source="stages/compare/sections/speed.py"),
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.name)
def test_a_change_makes_these_stages_out_of_date(finished: Checkout, change: Change) -> None:
    with finished.restored("params.yaml", *filter(None, [change.source]), "data/tracking.json"):
        finished.configure(change.params)
        if change.source:
            with (finished.root / change.source).open("a", encoding="utf-8") as stream:
                stream.write("# a remark\n")
        assert finished.out_of_date() == change.runs


def test_nothing_runs_twice(finished: Checkout) -> None:
    before = [run.info.run_id for run in finished.runs()]
    assert finished.repro() == {"environment"}
    assert [run.info.run_id for run in finished.runs()] == before
    assert finished.succeed("git", "status", "--porcelain") == ""


def test_an_arm_that_is_no_longer_listed_goes_and_comes_back_untrained(copied: Checkout) -> None:
    copied.configure({"train.variants": ["float32"]})
    copied.succeed("python", "-m", "stages.environment")
    assert {name.partition("/")[0] for name in copied.files("data/train")} == {"float32-0"}
    assert {name.partition("/")[0] for name in copied.files("data/profile")} == {"float32", "_control"}

    copied.configure({"train.variants": ["float32", "mixed_bfloat16"]})
    assert copied.repro() == {"environment", "compare"}
    assert "mixed_bfloat16/rounds.csv" in copied.files("data/profile")
