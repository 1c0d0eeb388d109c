"""`python -m stages.fleet.node --variant V --seed S`: one training in a clone on a node.

Programs that run in a clone use its other functions. The last line that such a program prints says why it failed.
"""

from __future__ import annotations

import argparse
import re
import signal
import subprocess
import sys
from collections.abc import Sequence

from stages import files
from stages.cli import cli_entry
from stages.errors import HalfstepError, one_line
from stages.fleet.cluster import LOST
from stages.fleet.remote import dvc_error
from stages.telling import told

_STATUS = re.compile(r"exited with (-?\d+)")
_BY_SIGNAL = {128 + signal.SIGKILL, 128 + signal.SIGTERM}  # how a shell reports it; Python reports a negative number
_DVC_ERRORS = ("ERROR: ", "WARNING: ")


class StepError(HalfstepError):
    """A command that failed in a clone. What a signal ended can be tried again: a lack of memory, or a preemption."""

    def __init__(self, reason: str, status: int = 1) -> None:
        by_signal = status < 0 or status in _BY_SIGNAL
        super().__init__(f"a signal ended it ({status})" if by_signal else reason)
        self.exit_status = LOST if by_signal or status == LOST else 1


def main() -> int:
    """Entry point of a training on a node."""
    parser = argparse.ArgumentParser(prog="python -m stages.fleet.node", description=__doc__)
    parser.add_argument("--variant", required=True)
    parser.add_argument("--seed", required=True, type=int)
    arguments = parser.parse_args()
    return cli_entry(lambda: train(arguments.variant, arguments.seed))()


def train(variant: str, seed: int) -> None:
    """Fetches the prepared data, trains, and pushes the result.

    Raises:
        StepError: a command failed; its status is 75 if the training can be tried again.
    """
    prepare_clone()
    stage = f"train@{files.train_dir(variant, seed).name}"
    dvc("repro", "--single-item", stage)
    dvc("push", "--run-cache", stage)


def prepare_clone() -> None:
    """Describes the machine, with the head's digests of the inputs, and fetches `data/prepared`.

    Raises:
        StepError: a check failed on this machine, or the remote refused.
    """
    run_module("stages.environment")
    dvc("pull", str(files.PREPARED))


def dvc(*arguments: str) -> list[str]:
    """Runs DVC and passes its output on. Returns what its stages told of their progress.

    Raises:
        StepError: with the message of the stage, or else of DVC.
    """
    status, printed = _run("dvc", *arguments)
    lines = [line for line in printed if told(line) is None]
    if status:
        own = [line for line in lines if not line.startswith(_DVC_ERRORS)]
        found = _STATUS.search("\n".join(lines))
        is_stage = found is not None and own
        reason = own[-1] if is_stage else f"dvc {arguments[0]}: {dvc_error(chr(10).join(lines))}"
        raise StepError(reason, int(found[1]) if found else 1)
    return [text for line in printed if (text := told(line)) is not None]


def run_module(name: str, *arguments: str) -> None:
    """Runs a stage without DVC and passes its output on.

    Raises:
        StepError: with its last line.
    """
    status, lines = _run(name, *arguments)
    if status:
        raise StepError(lines[-1] if lines else f"{name} failed with status {status}", status)


def _run(module: str, *arguments: str) -> tuple[int, Sequence[str]]:
    """Runs a module with this Python. Returns its status and the lines that it printed."""
    command = [sys.executable, "-u", "-m", module, *arguments]
    lines: list[str] = []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            if line.strip():
                lines.append(one_line(line.strip()))
    return process.returncode, lines


if __name__ == "__main__":
    raise SystemExit(main())
