"""What a user can cause, said in one line: what is wrong, what is allowed, what to do."""

from __future__ import annotations

import errno
import functools
import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path

_CREDENTIALS = re.compile(r"(?<=://)(?:[^\s@/?#:]*:[^\s@]*|[^/?#\s]*)@")
_SECRET_FIELDS = re.compile(r"(?i)([?&;](?:password|passwd|pwd|sslpassword|token|access_token)=)[^&;\s'\"]*")
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
# What the system refuses for reasons that lie outside of the program: a read-only disk, a file where a folder should be
REFUSALS = _NO_ROOM | frozenset(
    {errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ELOOP}
)


class HalfstepError(Exception):
    """A failure that its message explains in full: no traceback is shown for it."""

    exit_status = 1


class ParameterError(HalfstepError):
    """A value of `params.yaml` that cannot be used; the message holds one line for each."""

    exit_status = 2


class DataError(HalfstepError):
    """Images or prepared arrays that cannot be used."""


class CorruptFileError(HalfstepError):
    """A file that is not what its manifest says it is."""


class ModelError(HalfstepError):
    """A model that cannot be built or trained on the prepared images."""


class PrecisionError(HalfstepError):
    """A variant that claims a precision which is not in force."""


class ProfileError(HalfstepError):
    """A measurement that could not be taken."""


class TraceError(HalfstepError):
    """A profiler trace that cannot be read."""

    exit_status = 2


class ComparisonError(HalfstepError):
    """Arms that must not be compared."""


class TrackingError(HalfstepError):
    """An MLflow store that cannot be used."""


class BusyError(HalfstepError):
    """Another process that is at work on the same results."""


class GateError(HalfstepError):
    """No candidate was adopted although `compare.gate` asks for one."""


def without_password(text: str) -> str:
    """A URI, or a text that holds some, without the users and passwords in them."""
    return _SECRET_FIELDS.sub(r"\1***", _CREDENTIALS.sub("", text))


def explained(main: Callable[[], None]) -> Callable[[], int]:
    """Wraps a stage's entry: what a user caused becomes its message on standard error and an exit status.

    Returns:
        A function that returns 0, the `exit_status` of the `HalfstepError` that ended `main`, 1 where the system
        refused to read or write, or 130 after Ctrl-C. Any other exception is a fault of the program and keeps its
        traceback.
    """

    @functools.wraps(main)
    def entry() -> int:
        # SIGTERM unwinds the stack as Ctrl-C does, so that runs are closed and temporary files removed on the way out
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        try:
            main()
        except HalfstepError as error:
            print(f"{without_password(str(error))}{_way_back()}", file=sys.stderr)
            return error.exit_status
        except OSError as error:
            if error.errno not in REFUSALS:
                raise
            print(f"{_refusal(error)}{_way_back()}", file=sys.stderr)
            return HalfstepError.exit_status
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            return 128 + signal.SIGINT
        return 0

    return entry


def _refusal(error: OSError) -> str:
    where = f"{error.filename}: " if error.filename else ""
    do = "make room" if error.errno in _NO_ROOM else "put right what stands there, or its permissions"
    return f"{where}{error.strerror}; {do}, then run `dvc repro` again"


def _way_back() -> str:
    """What DVC removed when it started the stage, and how to get it back; empty outside of DVC or the first time."""
    stage, lock = os.environ.get("DVC_STAGE", ""), Path("dvc.lock")
    if stage in ("", "environment") or not lock.is_file():
        return ""
    if f"\n  {stage}:\n" not in lock.read_text(encoding="utf-8"):
        return ""
    return f"; `dvc checkout {stage}` brings back the result of before"
