"""The stages that a change makes out of date."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
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
    source: tuple[str, ...] = ()


# The stages that are out of date immediately. Later stages run, too, if their inputs have changed.
CHANGES = [
    Change("messages and tracking", set(), source=("halfstep/errors.py", "halfstep/tracking/tracker.py")),
    Change(
        "entry of a variant", {"train@mixed_bfloat16-0", "profile", "serve"}, {"variants.mixed_bfloat16.tf32": False}
    ),
    Change("entry that is not trained", {"profile", "serve"}, {"variants.mixed_float16.xla": True}),
    Change(
        "new seed",
        {"train@float32-1", "train@mixed_bfloat16-1", "profile", "serve", "compare"},
        {"train.seeds": [0, 1]},
    ),
    Change(
        "new variant",
        {"train@mixed_float16-0", "profile", "serve", "compare"},
        {"train.variants": ["float32", "mixed_bfloat16", "mixed_float16"]},
    ),
    Change("timing protocol", {"profile", "serve"}, {"profile.rounds": 3}),
    Change("quality margin", {"compare"}, {"compare.quality_margin": 0.02}),
    Change("code of prepare", {"prepare"}, source=("halfstep/prepare/images/splitting.py",)),
    Change("code of the models", BOTH | {"profile", "serve"}, source=("halfstep/tasks/images/models/parts.py",)),
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.name)
def test_change_makes_stages_out_of_date(finished: Checkout, change: Change) -> None:
    with finished.restored("params.yaml", *change.source, "data/keys/tracking"):
        finished.configure(change.params)
        for source in change.source:
            with (finished.root / source).open("a", encoding="utf-8") as stream:
                stream.write("# a comment\n")
        assert finished.out_of_date() == change.runs


def test_second_repro_runs_only_environment(finished: Checkout) -> None:
    before = [run.info.run_id for run in finished.runs()]
    assert finished.repro() == {"environment"}
    assert [run.info.run_id for run in finished.runs()] == before
    assert finished.check_output("git", "status", "--porcelain") == ""


def test_dvc_repro_stops_before_any_file_is_changed(finished: Checkout) -> None:
    before = finished.snapshot()
    with finished.restored("params.yaml"):
        finished.configure({"train.epochs": -1})
        done = finished.run("dvc", "repro")
    assert done.returncode != 0
    assert "params.yaml: train.epochs is -1; it must be an integer of at least 0" in done.stderr
    assert "Traceback" not in done.stderr
    assert finished.snapshot() == before


def test_results_of_an_unlisted_variant_are_removed_and_later_restored(copied: Checkout) -> None:
    copied.configure({"train.variants": ["float32"]})
    copied.check_output("python", "-m", "stages.environment")
    assert {name.partition("/")[0] for name in copied.files("data/train")} == {"float32-0"}
    assert {name.partition("/")[0] for name in copied.files("data/profile")} == {"float32", "_control"}

    copied.configure({"train.variants": ["float32", "mixed_bfloat16"]})
    assert copied.repro() == {"environment", "compare"}
    assert "mixed_bfloat16/rounds.csv" in copied.files("data/profile")


def test_fleet_finds_that_finished_trainings_have_changed(copied: Checkout, tmp_path: Path) -> None:
    copied.check_output("dvc", "remote", "add", "--default", "shared", str(tmp_path / "remote"))
    copied.check_output("dvc", "push", "--run-cache")
    assert unfinished(copied) == set()
    for change in ({"train.learning_rate": 0.002}, {"variants.float32.tf32": False}):
        with copied.restored("params.yaml"):
            copied.configure(change)
            assert unfinished(copied) == ({"train@float32-0"} if "variants.float32.tf32" in change else BOTH), change
    assert unfinished(copied) == set()


def unfinished(checkout: Checkout) -> set[str]:
    """What `python -m halfstep fleet train` would train."""
    code = (
        "from halfstep.params import loading; from halfstep.fleet.unfinished import unfinished_trainings; "
        "print('unfinished:', *unfinished_trainings(loading.load().train))"
    )
    return set(checkout.check_output("python", "-c", code).rpartition("unfinished:")[2].split())
