"""Measurements of the same arms on several occasions."""

from __future__ import annotations

import math

import pytest

from halfstep.compare.case import Judging
from halfstep.compare.document import document_of
from halfstep.compare.notes import notes
from halfstep.errors import CorruptFileError
from halfstep.results import occasions
from tests.small_study import PROTOCOL, SmallStudy

MINE = "mixed_bfloat16"


def measured(project: SmallStudy, word: str | None, measurement: str = "one", factor: float = 1.0) -> Judging:
    """Compares on an occasion, on which the candidate takes so many times as long, and keeps what was found."""
    protocol = PROTOCOL.model_copy(update={"occasion": word, "measurement": measurement})
    project.edit_profile("float32", protocol=protocol)
    project.scale_times(MINE, "rounds.csv", factor)
    comparison = project.compare()
    occasions.write_occasion(protocol, comparison.void, comparison.found_ratios())
    project.scale_times(MINE, "rounds.csv", 1 / factor)
    return comparison


def test_occasions_are_averaged_with_what_they_differ_by(project: SmallStudy) -> None:
    first, second = measured(project, None), measured(project, "monday", factor=1.2)
    third = measured(project, "tuesday")
    one, two, three = (comparison.cases[1].speedups["train"] for comparison in (first, second, third))
    assert (one.occasions, two.occasions, three.occasions) == (1, 2, 3)
    assert two.ratio == pytest.approx(one.ratio / math.sqrt(1.2))
    assert two.high - two.low > 5 * (one.high - one.low)  # by 18 %, more than noise and whole runs
    same = first.cases[1].speedups["inference_b1"], third.cases[1].speedups["inference_b1"]
    assert same[1].high - same[1].low < 0.8 * (same[0].high - same[0].low)  # three that agree
    assert [comparison.control["train"].occasions for comparison in (first, third)] == [1, 1]


def test_word_that_is_measured_again_replaces_what_it_found(project: SmallStudy) -> None:
    measured(project, "monday", factor=1.2)
    again = measured(project, "monday")
    assert again.cases[1].speedups["train"].occasions == 1
    assert len(list((occasions.FOLDER / "one").iterdir())) == 1


def test_other_measurements_are_kept_apart(project: SmallStudy) -> None:
    measured(project, "monday", measurement="one")
    other = measured(project, "tuesday", measurement="two")
    assert other.cases[1].speedups["train"].occasions == 1
    assert sorted(path.name for path in occasions.FOLDER.iterdir()) == ["one", "two"]


def test_occasion_whose_copies_differ_is_left_out_and_named(project: SmallStudy) -> None:
    project.scale_times("_control", "rounds.csv", 1.3)
    assert measured(project, "loud").void == {"train"}
    project.scale_times("_control", "rounds.csv", 1 / 1.3)
    comparison = measured(project, "quiet")
    speedups = comparison.cases[1].speedups
    assert (speedups["train"].occasions, speedups["inference_b1"].occasions) == (1, 2)
    notes = document_of(comparison).notes or ()
    assert any(note.startswith("In training, `loud` is left out: the two copies of float32 differed") for note in notes)


def test_factors_of_a_bridging_arm_are_averaged_too(project: SmallStudy) -> None:
    measured(project, "monday")
    factors = measured(project, "tuesday").cases[0].factors
    assert {speedup.occasions for pair in factors.values() for speedup in (pair.settings, pair.precision)} == {2}


@pytest.mark.parametrize("words", [("a/b", "a_b"), ("ü" * 100, "ü" * 99), ("x" * 100, "x" * 99)])
def test_words_have_files_of_their_own(project: SmallStudy, words: tuple[str, str]) -> None:
    for word in words:
        measured(project, word)
    assert len(list((occasions.FOLDER / "one").iterdir())) == 2


def test_results_that_name_no_measurement_have_no_other_occasions(project: SmallStudy) -> None:
    comparison = project.compare()
    occasions.write_occasion(PROTOCOL, comparison.void, comparison.found_ratios())
    assert list(occasions.FOLDER.iterdir()) == []


def test_damaged_file_is_named(project: SmallStudy) -> None:
    measured(project, "monday")
    (path,) = (occasions.FOLDER / "one").iterdir()
    path.write_text("{")
    with pytest.raises(CorruptFileError, match=path.name):
        measured(project, "tuesday")


def test_gain_that_the_control_may_differ_by_is_said_to_be_unchecked(project: SmallStudy) -> None:
    def unchecked() -> list[str]:
        return [note for note in notes(project.compare()) if note.startswith("The control does not check")]

    assert unchecked() == []
    project.spread_processes("_control", "rounds.csv", 2.0)
    (note,) = unchecked()
    assert note.startswith(
        "The control does not check the gain of mixed_bfloat16 in training: the two copies of float32"
    )


def test_later_occasions_need_wider_intervals(project: SmallStudy) -> None:
    words = (None, "monday", "tuesday", "wednesday")
    speedups = [measured(project, word).cases[1].speedups["train"] for word in words]
    assert [speedup.confidence for speedup in speedups[2:]] == [0.995, 0.9975]
    (note,) = (note for note in notes(measured(project, "wednesday")) if "another look" in note)
    assert "number 4 of 5 at most, are of 99.75 %" in note
