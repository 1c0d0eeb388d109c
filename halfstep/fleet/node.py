"""`python -m halfstep.fleet.node --variant V --seed S`: what a node does in its copy of the tree.

The last line that it prints says why it failed. Its status is 75 if it can be tried again, and 74 if this node cannot
run it.
"""

from __future__ import annotations

import argparse
import re
import signal
import subprocess
import sys
from collections.abc import Sequence

from halfstep.cli import cli_entry
from halfstep.errors import HalfstepError, one_line
from halfstep.fleet.program import LOST, NODE_FAULT
from halfstep.system import files
from halfstep.system.commands import dvc_error
from halfstep.system.supervision import die_with_parent
from halfstep.system.telling import tell, told

_STATUS = re.compile(r"exited with (-?\d+)")
_BY_SIGNAL = {128 + signal.SIGKILL, 128 + signal.SIGTERM}  # how a shell reports it; Python reports a negative number
_DVC_ERRORS = ("ERROR: ", "WARNING: ")


class StepError(HalfstepError):
    """A command that failed. What a signal ended can be tried again: a lack of memory, or a preemption."""

    def __init__(self, reason: str, status: int) -> None:
        by_signal = status < 0 or status in _BY_SIGNAL
        super().__init__(f"a signal ended it ({status})" if by_signal else reason)
        self.exit_status = LOST if by_signal or status == LOST else status


def main() -> int:
    """Entry point."""
    die_with_parent(signal.SIGTERM)
    parser = argparse.ArgumentParser(prog="python -m halfstep.fleet.node", description=__doc__)
    parser.add_argument("--variant", required=True)
    parser.add_argument("--seed", type=int, required=True)
    arguments = parser.parse_args()
    return cli_entry(lambda: train(arguments.variant, arguments.seed))()


def train(variant: str, seed: int) -> None:
    """Describes the machine, with the head's digests, fetches the prepared data, trains, and pushes the result.

    Raises:
        StepError: a command failed. A check of `environment` is the node's fault: the head has passed them.
    """
    stage = f"train@{files.train_dir(variant, seed).name}"
    status, lines = _run("stages.environment")
    if status:
        raise StepError(lines[-1] if lines else f"stages.environment failed with status {status}", NODE_FAULT)
    dvc("pull", str(files.PREPARED))
    tell("has the data, and trains")
    dvc("repro", "--single-item", stage)
    dvc("push", "--run-cache", stage)


def dvc(*arguments: str) -> None:
    """Runs DVC and passes its output on.

    Raises:
        StepError: with the message of the stage, or else of DVC, whose own failure is the node's fault.
    """
    status, printed = _run("dvc", *arguments)
    if status:
        lines = [line for line in printed if told(line) is None]
        own = [line for line in lines if not line.startswith(_DVC_ERRORS)]
        match = _STATUS.search("\n".join(lines))
        if match is not None and own:
            raise StepError(own[-1], int(match[1]))
        raise StepError(f"dvc {arguments[0]}: {dvc_error(chr(10).join(lines))}", NODE_FAULT)


def _run(module: str, *arguments: str) -> tuple[int, Sequence[str]]:
    """Runs a module, which ends with this process. Returns its status and the lines that it printed."""
    command = [sys.executable, "-u", "-m", module, *arguments]
    lines: list[str] = []
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        preexec_fn=lambda: die_with_parent(signal.SIGTERM),
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            if line.strip():
                lines.append(one_line(line.strip()))
    return process.returncode, lines


if __name__ == "__main__":
    raise SystemExit(main())
