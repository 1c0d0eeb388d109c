"""Errors that a user can cause. Each message is one line: what is wrong, what is allowed, what to do."""

from __future__ import annotations

import errno
import os
import re

_CREDENTIALS = re.compile(r"(?<=://)(?:[^\s@/?#:]*:[^\s@]*|[^/?#\s]*)@")
_SECRET_FIELDS = re.compile(r"(?i)([?&;](?:password|passwd|pwd|sslpassword|token|access_token)=)[^&;\s'\"]*")
DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
NO_SPACE = f"{os.strerror(errno.ENOSPC)}; free some disk space, then run `dvc repro` again"
_DISK_FULL_TEXTS = ("database or disk is full", os.strerror(errno.ENOSPC))  # the first is SQLite's
# The cause is outside the program: a read-only disk, or a file where a folder should be.
REFUSALS = DISK_FULL | frozenset(
    {errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ELOOP}
    | {errno.ENAMETOOLONG}
)
ALL_OF_IT = "; all of it is in "  # before the name of a file that has the whole of a long message
_LONGEST_LINE = 2000  # characters
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


class TrainingCodeError(TaskError):
    """The user's own code failed while it was trained."""


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


class ChangedInputsError(HalfstepError):
    """Parameters or files that were edited while a stage ran, which began with others."""


class BusyError(HalfstepError):
    """Another process is writing the same results."""


class FleetError(HalfstepError):
    """A cluster, a machine or a remote that trainings cannot be sent to, or trainings that failed there."""


class CommandError(HalfstepError):
    """git or DVC, run as a program, failed."""


class AdviceError(HalfstepError):
    """A change that cannot be tried."""


class WorkspaceError(HalfstepError):
    """The workspace of `halfstep judge` cannot be used, or a stage failed in it."""

    exit_status = 2


class GateError(HalfstepError):
    """The comparison does not pass `compare.gate`."""


def is_disk_full(error: BaseException) -> bool:
    """Whether an error is that a disk is full. Libraries that wrap such an error quote its text."""
    return getattr(error, "errno", None) in DISK_FULL or any(text in str(error) for text in _DISK_FULL_TEXTS)


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
