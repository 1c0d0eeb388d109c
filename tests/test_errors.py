from __future__ import annotations

import errno
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from halfstep.cli import cli_entry
from halfstep.errors import GateError, HalfstepError, ParameterError, one_line, printable


@pytest.fixture(autouse=True)
def signal_handlers() -> Iterator[None]:
    """An entry point changes the handlers of its process, which is that of the tests here."""
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


def raising(error: BaseException) -> Callable[[], None]:
    def main() -> None:
        raise error

    return main


@pytest.mark.parametrize(
    ("error", "status", "stderr"),
    [
        (ParameterError("a", "b"), 2, "a\nb\n"),
        (GateError("no candidate"), 1, "no candidate\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
    ],
)
def test_user_error_gives_a_message_and_a_status(
    error: BaseException, status: int, stderr: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli_entry(raising(error))() == status
    assert capsys.readouterr() == ("", stderr)


@pytest.mark.parametrize("error", [ZeroDivisionError(), OSError(errno.ENOENT, "No such file", "x")])
def test_bug_keeps_its_traceback(error: Exception) -> None:
    with pytest.raises(type(error)):
        cli_entry(raising(error))()


@pytest.mark.parametrize(
    ("number", "text", "advice"),
    [
        (errno.ENOSPC, "No space left on device", "free some disk space"),
        (errno.EACCES, "Permission denied", "check the path and its permissions"),
    ],
)
def test_system_error_gives_one_line(number: int, text: str, advice: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli_entry(raising(OSError(number, text, "data/x")))() == 1
    assert capsys.readouterr().err == f"data/x: {text}; {advice}, then run `dvc repro` again\n"


def test_full_disk_that_a_library_reports_gives_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli_entry(raising(sqlite3.OperationalError("database or disk is full")))() == 1
    assert capsys.readouterr().err == "No space left on device; free some disk space, then run `dvc repro` again\n"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Übung ✓ − × 日本", "Übung ✓ − × 日本"),
        ("a\nb\r\tc", "a\\nb\\r\\tc"),
        ("\x1b[2J", "\\x1b[2J"),
        ("a\u2028b\x85c", "a\\u2028b\\x85c"),
        ("gpj\u202e.exe", "gpj\\u202e.exe"),
        ("\ud800", "\\ud800"),
        (os.fsdecode(b"\xff"), "\\xff"),
        ("\\n", "\\n"),
    ],
)
def test_text_from_outside_is_made_printable(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert printable(shown) == shown


def test_long_text_is_cut() -> None:
    assert printable("abcdef", 6) == "abcdef"
    assert printable("abcdefg", 6) == "abc..."
    assert printable("\0" * 5, 6) == "\\x0..."
    assert len(printable("x" * 10_000_000, 80)) == 80


def test_password_at_the_cut_is_removed() -> None:
    assert one_line("http://user:" + "s3cret" * 20 + "@host", 40) == "http://host"
    assert one_line("http://user:a\nb@host") == "http://host"


@pytest.mark.parametrize(
    "error",
    [HalfstepError("x: a\n\x1b[2J"), OSError(errno.EACCES, "Permission denied", "x: a\n\x1b[2J")],
)
def test_message_is_printable_and_on_one_line(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    cli_entry(raising(error))()
    printed = capsys.readouterr().err
    assert printed.startswith("x: a\\n\\x1b[2J")
    assert printed.count("\n") == 1
    assert printed.rstrip("\n").isprintable()


def test_each_line_of_a_parameter_error_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    cli_entry(raising(ParameterError("a\nb", "c\x1bd", "e" * 5000)))()
    first, second, third = capsys.readouterr().err.splitlines()
    assert (first, second, len(third)) == ("a\\nb", "c\\x1bd", 2000)


@pytest.mark.parametrize(
    ("encoding", "printed"),
    [
        ("utf-8", "−0.37 to 1.73 × ≥ é \\udcff"),
        ("latin-1", "-0.37 to 1.73 × >= é \\udcff"),
        ("ascii", "-0.37 to 1.73 x >= \\xe9 \\udcff"),
    ],
)
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_text_is_printed_in_any_encoding(encoding: str, printed: str, stream: str, root: Path) -> None:
    check = (
        "import sys; from halfstep.cli import cli_entry\n"
        f"cli_entry(lambda: print('\u22120.37 to 1.73 \xd7 \u2265 \xe9 \udcff', file=sys.{stream}))()"
    )
    done = subprocess.run(
        [sys.executable, "-c", check.encode("unicode_escape").decode().replace("\\n", "\n")],
        cwd=root,
        env=os.environ | {"PYTHONIOENCODING": encoding},
        capture_output=True,
        check=True,
    )
    assert getattr(done, stream).decode(encoding) == f"{printed}\n"


def test_sigterm_unwinds_the_stack() -> None:
    cleaned = []

    def main() -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            cleaned.append(True)

    with pytest.raises(SystemExit) as caught:
        cli_entry(main)()
    assert (caught.value.code, cleaned) == (143, [True])


@pytest.mark.parametrize(
    ("stage", "locked", "hint"),
    [
        (
            "train@float32-0",
            "stages:\n  train@float32-0:\n",
            "; `dvc checkout train@float32-0` restores the previous result",
        ),
        ("train@float32-0", "stages:\n  train@float32-1:\n", ""),
        ("environment", "stages:\n  environment:\n", ""),
        ("", "stages:\n  prepare:\n", ""),
    ],
    ids=["has a previous result", "has never run", "environment keeps its outputs", "not under DVC"],
)
def test_message_says_how_to_restore_the_previous_result(
    stage: str,
    locked: str,
    hint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DVC_STAGE", stage)
    (tmp_path / "dvc.lock").write_text(locked)
    cli_entry(raising(HalfstepError("too small")))()
    printed = capsys.readouterr().err
    assert printed.startswith(f"too small{hint}")
    assert printed.count("\n") == 1
    assert ("dvc checkout" in printed) == bool(hint)


@pytest.mark.parametrize(("number", "status", "printed"), [("SIGINT", 130, "interrupted\n"), ("SIGTERM", 143, "")])
def test_signal_in_a_destructor_is_not_lost(number: str, status: int, printed: str) -> None:
    """Python ignores exceptions there."""
    code = (
        "import signal, time; from halfstep.cli import cli_entry\n"
        "class Receiver:\n"
        f"    def __del__(self): signal.raise_signal(signal.{number})\n"
        "def main():\n"
        "    Receiver()\n"
        "    time.sleep(20)\n"
        "raise SystemExit(cli_entry(main)())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (status, printed)
