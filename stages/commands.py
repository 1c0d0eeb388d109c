"""Runs git and DVC as programs, and says in one line why one failed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from stages.errors import CommandError, one_line

_DVC_PREFIXES = ("ERROR: ", "WARNING: ")
_GIT_LIMIT_S = 120.0


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
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR: ")] or lines or ["it failed without a message"]
    text = errors[0]
    for prefix in _DVC_PREFIXES:
        text = text.removeprefix(prefix)
    return one_line(text, 400)
