"""Runs programs, with a limit of time; git and DVC among them, of which one line says why one failed.

`halfstep.system.child` has the same for a function.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from halfstep.errors import CommandError, one_line

_DVC_PREFIXES = ("ERROR: ", "WARNING: ")
_DVC_FOOTER = "Having any troubles?"  # after an error that DVC did not expect
_GIT_LIMIT_S = 120.0
_KILL_S = 10.0
_LOG_BYTES = 2**20


class Ended(NamedTuple):
    """How a program ended.

    Attributes:
        status: the exit status, negative for a signal; None if it was stopped at the limit.
        stdout: what it printed.
        stderr: the last MiB of its errors.
    """

    status: int | None
    stdout: str
    stderr: str


def run_program(command: Sequence[str], limit_s: float, variables: Mapping[str, str]) -> Ended:
    """Runs a program without input, beside the environment variables of this process with these.

    What it prints goes to files, so that a child that it leaves behind keeps nobody waiting.
    """
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        environment = os.environ | variables
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, env=environment)
        status: int | None = None
        try:
            with suppress(subprocess.TimeoutExpired):
                status = process.wait(limit_s)
        finally:
            process.kill()
            with suppress(subprocess.TimeoutExpired):  # a process that waits for a driver cannot be ended
                process.wait(_KILL_S)
        stdout.seek(0)
        stderr.seek(max(0, stderr.seek(0, os.SEEK_END) - _LOG_BYTES))
        return Ended(status, stdout.read().decode(errors="replace"), stderr.read().decode(errors="replace"))


def git(*arguments: str, folder: Path | None = None) -> str:
    """Output of a git command, without the line end.

    Args:
        arguments: what follows `git`.
        folder: where it runs; None for the working folder.

    Raises:
        CommandError: there is no git, or the command fails or hangs; the message is git's first line.
    """
    command = ["git", *arguments]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, timeout=_GIT_LIMIT_S, check=False)
    except FileNotFoundError:
        raise CommandError("git is not installed") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CommandError(f"git {arguments[0]}: {one_line(str(error), 200)}") from error
    if done.returncode:
        text = done.stderr.decode(errors="replace").strip()
        raise CommandError(f"git {arguments[0]}: {one_line(text, 400) or f'status {done.returncode}'}")
    return done.stdout.decode("utf-8", "surrogateescape").rstrip("\n")


def dvc(*arguments: str, folder: Path | None = None) -> str:
    """Output of a command of the DVC of this Python.

    Raises:
        CommandError: it fails; the message is DVC's first error.
    """
    done = run_dvc(*arguments, folder=folder)
    if done.returncode:
        raise CommandError(f"dvc {' '.join(arguments[:2])}: {dvc_error(done.stderr)}")
    return done.stdout


def run_dvc(*arguments: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """The same, for who reads why it failed."""
    command = [sys.executable, "-m", "dvc", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace", check=False)


def dvc_error(output: str) -> str:
    """DVC's first error in what it printed, on one line."""
    lines = [line.strip() for line in output.splitlines() if line.strip() and not line.startswith(_DVC_FOOTER)]
    errors = [line for line in lines if line.startswith("ERROR: ")] or lines or ["it failed without a message"]
    text = errors[0]
    for prefix in _DVC_PREFIXES:
        text = text.removeprefix(prefix)
    return one_line(text, 400)
