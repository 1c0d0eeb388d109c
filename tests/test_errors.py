from __future__ import annotations

import errno
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stages.errors import GateError, HalfstepError, ParameterError, explained


@pytest.fixture(autouse=True)
def signal_handler() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def raising(error: BaseException) -> Callable[[], None]:
    def main() -> None:
        raise error

    return main


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (ParameterError("a\nb"), 2, "a\nb\n"),
        (GateError("no candidate"), 1, "no candidate\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
    ],
)
def test_what_a_user_can_cause_is_a_message_and_a_status(
    error: BaseException, status: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert explained(raising(error))() == status
    assert capsys.readouterr() == ("", said)


@pytest.mark.parametrize("error", [ZeroDivisionError(), OSError(errno.ENOENT, "No such file", "x")])
def test_a_fault_of_the_program_keeps_its_traceback(error: Exception) -> None:
    with pytest.raises(type(error)):
        explained(raising(error))()


@pytest.mark.parametrize(
    ("number", "words", "advice"),
    [
        (errno.ENOSPC, "No space left on device", "make room"),
        (errno.EDQUOT, "Disk quota exceeded", "make room"),
        (errno.EACCES, "Permission denied", "put right what stands there, or its permissions"),
        (errno.EROFS, "Read-only file system", "put right what stands there, or its permissions"),
        (errno.EISDIR, "Is a directory", "put right what stands there, or its permissions"),
    ],
)
def test_what_the_system_refuses_is_one_line(
    number: int, words: str, advice: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert explained(raising(OSError(number, words, "data/x")))() == 1
    assert capsys.readouterr().err == f"data/x: {words}; {advice}, then run `dvc repro` again\n"


def test_a_message_holds_no_password(capsys: pytest.CaptureFixture[str]) -> None:
    explained(raising(HalfstepError("http://user:s3cret@host:5000 and postgresql://a/b?password=s3cret")))()
    assert capsys.readouterr().err == "http://host:5000 and postgresql://a/b?password=***\n"


def test_a_clean_end_is_zero() -> None:
    assert explained(lambda: None)() == 0


def test_sigterm_unwinds_the_stack() -> None:
    cleaned = []

    def main() -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            cleaned.append(True)

    with pytest.raises(SystemExit) as caught:
        explained(main)()
    assert (caught.value.code, cleaned) == (143, [True])


def test_every_failure_of_the_users_is_a_halfstep_error() -> None:
    from stages import errors

    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    assert all(issubclass(kind, HalfstepError) for kind in kinds)


@pytest.mark.parametrize(
    ("stage", "locked", "hint"),
    [
        ("train@float32-0", "stages:\n  train@float32-0:\n", "; `dvc checkout train@float32-0` brings back"),
        ("train@float32-0", "stages:\n  train@float32-1:\n", ""),
        ("environment", "stages:\n  environment:\n", ""),
        ("", "stages:\n  prepare:\n", ""),
    ],
    ids=["has a last result", "never ran", "environment keeps its outputs", "not under DVC"],
)
def test_the_message_says_how_to_get_back_what_dvc_removed(
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
    explained(raising(HalfstepError("too small")))()
    printed = capsys.readouterr().err
    assert printed.startswith(f"too small{hint}")
    assert printed.count("\n") == 1
    assert ("dvc checkout" in printed) == bool(hint)
