"""What a user can cause, said in one line: what is wrong, what is allowed, what to do."""

from __future__ import annotations

import functools
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path


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


class GateError(HalfstepError):
    """No candidate was adopted although `compare.gate` asks for one."""


def explained(main: Callable[[], None]) -> Callable[[], int]:
    """Wraps a stage's entry: what a user caused becomes its message on standard error and an exit status.

    Returns:
        A function that returns 0, the `exit_status` of the `HalfstepError` that ended `main`, or 130 after Ctrl-C. Any
        other exception is a fault of the program and keeps its traceback.
    """

    @functools.wraps(main)
    def entry() -> int:
        # SIGTERM unwinds the stack as Ctrl-C does, so that runs are closed and temporary files removed on the way out
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        try:
            main()
        except HalfstepError as error:
            print(f"{error}{_way_back()}", file=sys.stderr)
            return error.exit_status
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            return 128 + signal.SIGINT
        return 0

    return entry


def _way_back() -> str:
    """What DVC removed when it started the stage, and how to get it back; empty outside of DVC or the first time."""
    stage, lock = os.environ.get("DVC_STAGE", ""), Path("dvc.lock")
    if stage in ("", "environment") or not lock.is_file():
        return ""
    if f"\n  {stage}:\n" not in lock.read_text(encoding="utf-8"):
        return ""
    return f"; `dvc checkout {stage}` brings back the result of before"
