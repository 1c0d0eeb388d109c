"""The ways that answer whether a candidate is faster, on recordings whose truth is known."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from tools.benchmarks.other_ways import digits, drawing, end_to_end, recording, table, ways
from tools.benchmarks.other_ways.drawing import BAR, HALFSTEP, PYPERF, stopwatch_name
from tools.benchmarks.other_ways.end_to_end import Line
from tools.benchmarks.other_ways.recordings import NO_TURN, Fit, Recording, Repeat

STEP_US, EPOCHS, STEPS, ROUNDS = 4000, 12, 33, 60
SEQUENTIAL = (stopwatch_name(8), stopwatch_name(EPOCHS), BAR, PYPERF)


def simulated(drift: float = 0.0, processes: int = 44, repeats: int = 12) -> Recording:
    """A machine whose only noise is a drift: each process and each round takes so many times less than the one before.

    `fit` has nothing but its steps, so that a ratio of its times is one of steps.
    """
    fits = []
    for number in range(processes):
        step_us = np.full((EPOCHS, STEPS), round(STEP_US * (1 - drift) ** number), dtype=np.int32)
        fits.append(Fit(step_us, np.zeros_like(step_us), np.zeros(EPOCHS, dtype=np.int32)))
    turns = np.rint(10 * STEP_US * (1 - drift) ** np.arange(ROUNDS)).astype(np.int32)
    turn_us = np.stack([turns, turns, np.where(np.arange(ROUNDS) // 2 % 3 == 1, turns, NO_TURN)])
    spent_s = (5.0,) * processes
    return Recording(
        "quiet",
        "a machine",
        tuple(fits),
        spent_s,
        spent_s,
        tuple(Repeat(turn_us, 10, 2.0, 6.0) for _ in range(repeats)),
    )


def answers(recorded: Recording, truth: float) -> dict[str, drawing.Row]:
    return {row.way: row for row in drawing.rows(recorded, draws=5, truths=[truth])}


@pytest.mark.parametrize(("truth", "answer"), [(1.0, "no"), (1.2, "yes")])
def test_without_noise_no_way_is_wrong(truth: float, answer: str) -> None:
    found = answers(simulated(), truth)
    assert set(found) == {*SEQUENTIAL, HALFSTEP}
    for way, row in found.items():
        is_pyperf_without_a_difference = way == PYPERF and truth == 1
        expected = "undecided" if is_pyperf_without_a_difference else answer
        assert (row.wrong, getattr(row, expected)) == (0.0, 1.0), way
        assert row.ratio == pytest.approx(truth, rel=0.05 if way == BAR else 0.01), way  # it shows whole milliseconds


def test_a_drift_makes_the_ways_in_sequence_wrong_and_not_the_one_in_turns() -> None:
    found = answers(simulated(drift=0.01), truth=1.0)
    assert found[PYPERF].wrong == 1.0
    assert found[HALFSTEP].wrong == 0.0
    assert found[HALFSTEP].ratio == pytest.approx(1, abs=0.005)
    assert answers(simulated(drift=0.06, processes=6), truth=1.0)[stopwatch_name(8)].wrong == 1.0


def test_halfstep_keeps_its_promise_on_noisy_rounds() -> None:
    """At the threshold, each of `adopt` and `reject` in at most 5 %; 20 % are seen, and so is that there is nothing."""
    generator, quiet = np.random.default_rng(0), simulated(repeats=20)
    noisy = []
    for repeat in quiet.repeats:
        logs = 0.05 * generator.normal(size=repeat.turn_us.shape) + 0.01 * generator.normal(size=(3, 1))
        turn_us = np.where(repeat.turn_us == NO_TURN, NO_TURN, np.rint(repeat.turn_us * np.exp(logs)).astype(np.int32))
        noisy.append(replace(repeat, turn_us=turn_us))
    found = list(drawing.rows(replace(quiet, repeats=tuple(noisy)), draws=200))
    equal, edge, fast = (row for row in found if row.way == HALFSTEP)
    assert (equal.yes, fast.no) == (0.0, 0.0)
    assert min(equal.no, fast.yes) > 0.8
    assert max(edge.yes, edge.no) <= 0.05


def test_halfstep_takes_the_time_of_its_stage_and_of_two_trainings() -> None:
    """No noise: three repeats do. Each takes 2 s to start and has at least 8 rounds of 0.12 s."""
    row = answers(simulated(), truth=1.2)[HALFSTEP]
    trainings_s = 2 * (5.0 - (EPOCHS - 8) * STEPS * STEP_US * 1e-6)
    assert 6 + 3 * (2 + 8 * 0.12) < row.seconds - trainings_s < 33


def test_the_planted_effect_leaves_out_the_compiling_step() -> None:
    (fit, *_) = simulated().fits
    slowed = fit.slowed(1.25)
    assert (slowed.step_us[0, 0], slowed.step_us[0, 1], slowed.step_us[-1, -1]) == (STEP_US, 5000, 5000)
    assert slowed.seconds(1) == pytest.approx(1e-3 * (4 + 32 * 5))


def test_values_are_those_of_pyperf() -> None:
    (fit, *_) = simulated().fits
    assert ways.loops_of(fit) == 32  # 16 steps take 64 ms
    steps = replace(fit, step_us=np.arange(EPOCHS * STEPS, dtype=np.int32).reshape(EPOCHS, STEPS))
    assert ways.values_of(steps, 32).tolist() == [47.5, 79.5, 111.5]


def test_pyperf_says_what_it_does_of_its_own_examples() -> None:
    """The samples of pyperf's own test of `is_significant`, and their answers."""
    before, after = np.array([1.0, 1.5, 2.0]), np.array([1.5, 2.0, 2.5])
    assert ways.pyperf_answer(before, after)[1] == "undecided"
    assert ways.pyperf_answer(np.tile(before, 100), np.tile(after, 100))[1] == "no"
    assert ways.pyperf_answer(np.tile(after, 100), np.tile(before, 100))[1] == "yes"


@pytest.mark.parametrize(
    ("answer", "truth", "is_wrong"),
    [("yes", 1.0, True), ("no", 1.0, False), ("yes", 1.05, False), ("no", 1.05, True), ("undecided", 1.2, False)],
)
def test_what_is_wrong(answer: ways.Answer, truth: float, is_wrong: bool) -> None:
    assert ways.is_wrong(answer, truth) == is_wrong


def test_recordings_are_read_as_they_were_written(tmp_path: Path) -> None:
    written = simulated(drift=0.01, processes=3, repeats=2)
    written.write(tmp_path)
    found = Recording.read(tmp_path, "quiet")
    assert found is not None
    np.testing.assert_equal(asdict(found), asdict(written))
    assert Recording.read(tmp_path, "busy") is None


@pytest.mark.parametrize(("slower_by", "extra"), [(0.05, 10), (0.2, 40)])
def test_a_slowed_step_has_its_share_of_extra_steps(slower_by: float, extra: int) -> None:
    steps, extras = list[int](), list[int]()
    slowed = digits.Slowed(steps.append, lambda: extras.append(len(steps)), slower_by)
    for number in range(200):
        slowed(number)
    assert (len(steps), len(extras)) == (200, extra)
    assert set(np.diff(extras)) == {round(1 / slower_by)}


def test_the_page_has_all_ways_and_no_gap(tmp_path: Path) -> None:
    recorded = simulated()
    recorded.write(tmp_path)
    table.write_rows(tmp_path, list(drawing.rows(recorded, draws=3)))
    lines = [
        Line("quiet", 1.2, "fit", 0, stopwatch_name(8), 1.17, "yes", 18.2),
        Line("quiet", 1.2, HALFSTEP, 0, HALFSTEP, 1.21, "yes", 60.0, (1.15, 1.27)),
        Line("quiet", 1.2, HALFSTEP, 1, HALFSTEP, 1.3, "yes", 62.0, (1.25, 1.35)),
        Line("quiet", 1.2, "delay", 0, "delay", 1.21, "yes", 20.0),
    ]
    (tmp_path / end_to_end.FILE).write_text("".join(json.dumps(vars(line)) + "\n" for line in lines))
    text = table.page(tmp_path)
    assert "44 processes" in text
    assert "| quiet | 1.20 | stopwatch, 8 epochs | 1 | 0 | 0 | 1.170 to 1.170 | 18 s |" in text
    assert "| halfstep | 2 | 0 | 0 | 1.210 to 1.300; 1 of 2 intervals contain the truth | 61 s |" in text
    assert "1.20 is 1.210 to 1.210 (quiet)." in text
    assert "| stopwatch, 8 epochs | 18 s | 0 of 1 |" in text
    assert "| halfstep | 60 to 62 s | 0 of 2 |" in text
    assert all(f"| {way} |" in text for way in (*SEQUENTIAL, HALFSTEP))
    assert not re.search(r"[{}]|nan", text)


@pytest.mark.slow
def test_a_recording_goes_on_where_it_stopped_and_can_be_drawn_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "EPOCHS", 9)
    times_left = iter([True, False, False])
    recording.record(tmp_path, "quiet", 2, 2, 8, lambda: next(times_left))
    first = Recording.read(tmp_path, "quiet")
    assert first is not None
    assert (len(first.fits), first.repeats) == (1, ())
    recorded = recording.record(tmp_path, "quiet", 2, 2, 8, lambda: True)
    np.testing.assert_equal(asdict(recorded.fits[0]), asdict(first.fits[0]))
    assert [repeat.turn_us.shape for repeat in recorded.repeats] == [(3, 8), (3, 8)]
    assert all((repeat.turn_us[:2] > 0).all() and NO_TURN in repeat.turn_us[2] for repeat in recorded.repeats)
    assert all(fit.seconds(9) < seconds for fit, seconds in zip(recorded.fits, recorded.fit_s, strict=True))
    ways_found = {row.way for row in drawing.rows(recorded, draws=2)}
    assert ways_found == {stopwatch_name(8), stopwatch_name(9), BAR, HALFSTEP}  # pyperf needs two processes a side


@pytest.mark.slow
def test_the_progress_bar_shows_what_is_computed(root: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tools.benchmarks.other_ways.fit", "--epochs", "4", "--out"]
    done = subprocess.run([*command, str(tmp_path / "fit.npz")], cwd=root, check=True, capture_output=True, text=True)
    shown_ms = [int(ms) for ms in re.findall(r"(\d+)ms/step[^\n\r\x08]*val_loss", done.stdout)]
    fit = Fit.read(tmp_path / "fit.npz")
    assert shown_ms == pytest.approx([ways.shown_ms(fit, epochs) for epochs in (1, 2, 3, 4)], abs=1)  # it ends later
