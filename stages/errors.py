"""Errors that a user can cause. Each message is one line: what is wrong, what is allowed, what to do."""

from __future__ import annotations

import codecs
import errno
import functools
import io
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_CREDENTIALS = re.compile(r"(?<=://)(?:[^\s@/?#:]*:[^\s@]*|[^/?#\s]*)@")
_SECRET_FIELDS = re.compile(r"(?i)([?&;](?:password|passwd|pwd|sslpassword|token|access_token)=)[^&;\s'\"]*")
_DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_IN_ASCII = {"−": "-", "–": "-", "×": "x", "…": "...", "±": "+-", "≥": ">=", "≤": "<=", "→": "->", "·": "."}
# The cause is outside the program: a read-only disk, or a file where a folder should be.
REFUSALS = _DISK_FULL | frozenset(
    {errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ELOOP}
    | {errno.ENAMETOOLONG}
)
_LONGEST_LINE = 2000  # characters
_RESEND_S = 0.01  # the destructor has returned by then
_ESCAPED_BYTES = range(0xDC80, 0xDD00)  # how Python represents the bytes of a file name that are not UTF-8


class HalfstepError(Exception):
    """A failure that is reported by its message alone, without a traceback. Each argument is one line of it."""

    exit_status = 1

    def __str__(self) -> str:
        return "\n".join(map(str, self.args))


class ParameterError(HalfstepError):
    """Invalid values in `params.yaml`, one line for each: `ParameterError(*lines)`."""

    exit_status = 2


class DataError(HalfstepError):
    """Images or prepared arrays that cannot be used."""


class CorruptFileError(HalfstepError):
    """A file whose content is not what a stage of this release wrote."""


class ModelError(HalfstepError):
    """A model that cannot be built or trained on the prepared images."""


class TaskError(HalfstepError):
    """A task that does not have what training, testing and timing need."""


class PrecisionError(HalfstepError):
    """A variant whose precision is not in effect."""


class ProfileError(HalfstepError):
    """A measurement that failed."""


class TraceError(HalfstepError):
    """A profiler trace that cannot be read."""

    exit_status = 2


class ComparisonError(HalfstepError):
    """Results that are not comparable."""


class TrackingError(HalfstepError):
    """An MLflow tracking store that cannot be used."""


class LostRankError(HalfstepError):
    """A process of a training on several hosts has ended, or never came. The next start resumes the training."""

    exit_status = 75  # EX_TEMPFAIL of sysexits.h: try again


class BusyError(HalfstepError):
    """Another process is writing the same results."""


class FleetError(HalfstepError):
    """A cluster, a machine or a remote that trainings cannot be sent to, or trainings that failed there."""


class GateError(HalfstepError):
    """No candidate was adopted although `compare.gate` is true."""


def without_password(text: str) -> str:
    """Removes user names and passwords from the URIs in a text."""
    return _SECRET_FIELDS.sub(r"\1***", _CREDENTIALS.sub("", text))


def printable(text: str, limit: int | None = None) -> str:
    """Returns `text` on one line, with an escape sequence for each character that is not printable.

    For text from outside: names, paths, values, and messages of other programs. They can contain line breaks, commands
    to the terminal, marks that reverse the direction of writing, and bytes that are not UTF-8.

    Args:
        text: the text. Text that is printable already is not changed.
        limit: largest number of characters; a longer text is cut, and ends with `...`.
    """
    start = text if limit is None else text[: limit + 1]  # escaping never makes a text shorter
    shown = "".join(char if char.isprintable() else _escaped(char) for char in start)
    return shown if limit is None or len(shown) <= limit else shown[: limit - 3] + "..."


def _escaped(char: str) -> str:
    if ord(char) in _ESCAPED_BYTES:
        return f"\\x{ord(char) - 0xDC00:02x}"
    return char.encode("unicode_escape").decode()


def one_line(text: str, limit: int = _LONGEST_LINE) -> str:
    """Returns `text` printable, without passwords, and not longer than `limit`."""
    # It is cut last: without its "@", a password would not be recognised.
    return printable(without_password(printable(text)), limit)


def cli_entry(main: Callable[[], None]) -> Callable[[], int]:
    """Wraps the entry point of a stage: an error that the user caused becomes one line on standard error.

    Returns:
        A function that returns 0, the `exit_status` of the `HalfstepError` that ended `main`, 1 if the operating
        system refused to read or write, or 130 after Ctrl-C. Any other exception is a bug and keeps its traceback.
    """

    @functools.wraps(main)
    def entry() -> int:
        # SIGTERM unwinds the stack as Ctrl-C does, so that MLflow runs are ended and temporary files are removed.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        if callable(signal.getsignal(signal.SIGINT)):  # it is ignored in a background job of a shell script
            signal.signal(signal.SIGINT, signal.default_int_handler)
        _print_in_any_encoding()
        try:
            with _no_signal_is_lost():
                main()
        except HalfstepError as error:
            _report(*error.args)
            return error.exit_status
        except OSError as error:
            if error.errno not in REFUSALS:
                raise
            _report(_os_error_message(error))
            return HalfstepError.exit_status
        except KeyboardInterrupt:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # another Ctrl-C must not interrupt the end of threads
            print("interrupted", file=sys.stderr)
            return 128 + signal.SIGINT
        return 0

    return entry


@contextmanager
def _no_signal_is_lost() -> Iterator[None]:
    """In the block, a signal is sent again whose exception Python has ignored: in a destructor, for example."""
    previous = sys.unraisablehook

    def send_again(ignored: Any) -> None:
        if issubclass(ignored.exc_type, KeyboardInterrupt):
            number = signal.SIGINT
        elif issubclass(ignored.exc_type, SystemExit) and ignored.exc_value.code == 128 + signal.SIGTERM:
            number = signal.SIGTERM
        else:
            previous(ignored)
            return
        threading.Timer(_RESEND_S, os.kill, (os.getpid(), number)).start()

    sys.unraisablehook = send_again
    try:
        yield
    finally:
        sys.unraisablehook = previous


def _report(*lines: object) -> None:
    text = "\n".join(one_line(str(line)) for line in lines)
    print(f"{text}{_restore_hint()}", file=sys.stderr)


def _os_error_message(error: OSError) -> str:
    path = f"{error.filename}: " if error.filename else ""
    advice = "free some disk space" if error.errno in _DISK_FULL else "check the path and its permissions"
    return f"{path}{error.strerror}; {advice}, then run `dvc repro` again"


def _restore_hint() -> str:
    """How to restore the result that DVC removed when it started the stage; empty outside DVC or without one."""
    stage, lock = os.environ.get("DVC_STAGE", ""), Path("dvc.lock")
    if stage in ("", "environment") or not lock.is_file():
        return ""
    if f"\n  {stage}:\n" not in lock.read_text(encoding="utf-8"):
        return ""
    return f"; `dvc checkout {stage}` restores the previous result"


@contextmanager
def ended_by_ctrl_c() -> Iterator[None]:
    """In the block, Ctrl-C ends the process at once: for a slow import, in which an exception may be lost."""
    stderr, previous = os.dup(2), signal.getsignal(signal.SIGINT)  # an import may redirect standard error

    def end(*_: object) -> None:
        os.write(stderr, b"interrupted\n")
        os._exit(128 + signal.SIGINT)

    if callable(previous):
        signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
        os.close(stderr)


def _print_in_any_encoding() -> None:
    """Replaces characters that the encoding of the terminal or the file does not have, instead of failing."""
    codecs.register_error("halfstep", _replaced)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="halfstep")


def _replaced(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    characters = error.object[error.start : error.end]
    return "".join(_IN_ASCII.get(one) or ascii(one)[1:-1] for one in characters), error.end
