"""What stages tell a program, and what that program reads of it."""

from __future__ import annotations

import io
import sys
import time

import pytest

from halfstep.system import telling
from halfstep.train.epochs import Epoch, epoch_line, length_line


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in telling.ASKED.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    ("logs", "score"),
    [
        ({"loss": 1.2345, "accuracy": 0.5, "val_loss": 1.1, "val_accuracy": 0.6}, "val_accuracy 0.6000"),
        ({"loss": 1.2345, "val_loss": float("nan")}, "val_loss nan"),
        ({"loss": 1e-05}, "loss 0.0000"),
    ],
)
@pytest.mark.usefixtures("asked")
def test_an_epoch_is_told_with_its_score(
    capsys: pytest.CaptureFixture[str], logs: dict[str, float], score: str
) -> None:
    epoch_line("train float32 seed 0", 8)(Epoch(0, logs, 1e-3, 1.2, None, None))
    (program,) = capsys.readouterr().out.splitlines()
    assert telling.told(program) == f"epoch 1/8, {score}"


@pytest.mark.parametrize(
    ("epochs", "said"), [(2000, "its 2,000 epochs end in about 3 h, and all 2 trainings take about 7 h"), (200, "")]
)
def test_a_training_of_hours_says_how_long(capsys: pytest.CaptureFixture[str], epochs: int, said: str) -> None:
    show = length_line("train float32 seed 0", epochs, 2)
    for epoch in range(3):
        show(Epoch(epoch, {"loss": 1.0}, 1e-3, 20.0 if epoch == 0 else 6.0, None, None))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == bool(said)
    assert said in "".join(lines)


@pytest.mark.usefixtures("asked")
def test_what_is_told_stays_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    telling.tell('a "word"\nand {another}')
    (line,) = capsys.readouterr().out.splitlines()
    assert telling.told(line) == 'a "word"\nand {another}'


def test_nothing_is_told_where_nobody_asked(capsys: pytest.CaptureFixture[str]) -> None:
    telling.say("train float32 seed 0", "test accuracy 0.9, 21.3 s")
    assert capsys.readouterr().out == "train float32 seed 0: test accuracy 0.9, 21.3 s\n"


@pytest.mark.parametrize("line", ["Running stage 'profile':", '{"other": 1}', '{"halfstep": "cut o', ""])
def test_other_lines_tell_nothing(line: str) -> None:
    assert telling.told(line) is None


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_line_on_a_terminal_is_rewritten(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("COLUMNS", "30")
    telling.progress("profile", "repeat 1")
    telling.progress("profile", "repeat 2; training: mixed_bfloat16 0.86 to 0.99×")
    first, second = terminal.getvalue().split("\r\x1b[K")[1:]
    assert (first, second) == ("profile: repeat 1", "profile: repeat 2; training: ")  # cut: a longer one would stay
    assert (telling.cleared(), telling.cleared()) == ("\r\x1b[K", "")


def test_silence_ends_with_a_line_where_there_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(telling, "_SILENT_S", 1.05)
    monkeypatch.setattr(telling, "_TICK_S", 0.01)
    with telling.never_silent("profile"):
        telling.progress("profile", "traces")
        time.sleep(0.3)
        said = capsys.readouterr().out
        assert said.splitlines() == ["profile: traces"], "the process itself has taken a second"
    time.sleep(0.05)
    assert capsys.readouterr().out == ""
