"""Repeats of a measurement are kept in a folder for all that decides the times; one process holds it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from halfstep.errors import BusyError
from halfstep.params.schema import CompareParams, Params, ProfileParams, TrainParams
from halfstep.profile.repeats import MAX_FOLDERS, amounts, measurement_key, opened
from halfstep.system import files

ASKED = amounts(ProfileParams(), 1.05)
INPUTS = {"machine": "a CPU", "data": "0" * 64}


@pytest.fixture(autouse=True)
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def profile(**changes: Any) -> Params:
    return Params(profile=ProfileParams(**changes))


@pytest.mark.parametrize(
    ("settings", "is_same"),
    [
        (profile(processes=7), True),
        (profile(max_seconds=9.0), True),
        (profile(target_precision=0.5), True),
        (Params(compare=CompareParams(min_speedup=1.5)), True),
        (Params(train=TrainParams(checkpoint_every=7)), True),
        (profile(occasion="monday"), False),
        (profile(interleave=False), False),
        (profile(steps_per_round=3), False),
        (Params(train=TrainParams(batch_size=7)), False),
        (Params(compare=CompareParams(baseline="mixed_bfloat16")), False),
    ],
)
def test_what_is_measured_decides_the_folder_and_how_much_does_not(settings: Params, is_same: bool) -> None:
    assert (measurement_key(settings, INPUTS) == measurement_key(Params(), INPUTS)) is is_same


def test_another_machine_has_another_folder() -> None:
    assert measurement_key(Params(), INPUTS | {"machine": "a GPU"}) != measurement_key(Params(), INPUTS)


def test_second_process_that_measures_the_same_is_told_so_in_one_line(checkout: Path) -> None:
    with opened("a" * 64, ASKED):
        busy = pytest.raises(BusyError, match=r"is in use by another process, which measures the same; wait")
        with busy as caught, opened("a" * 64, ASKED):
            pass
        assert "\n" not in str(caught.value)
        with opened("b" * 64, ASKED):
            pass
    with opened("a" * 64, ASKED):
        pass


def test_newest_folders_stay(checkout: Path) -> None:
    for number, name in enumerate("abcdef"):
        with opened(name * 64, ASKED):
            os.utime(checkout / files.WORK_DIR / "profile" / (name * 16), (number, number))
    names = sorted(path.name[0] for path in (checkout / files.WORK_DIR / "profile").iterdir())
    assert names == list("cdef")
    assert len(names) == MAX_FOLDERS
