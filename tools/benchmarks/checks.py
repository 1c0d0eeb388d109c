"""`python -m tools.benchmarks.checks`: what the checks of a default `dvc repro` cost.

Runs `dvc repro` in a clone of the current commit, then, in a new process for each stage, what the stage does beside its
work: the fork of its parent, the digests of its inputs at its start and its end, the settings of Keras before and
after the user's code, and the space for temporary files. Prints seconds of CPU, of the process and of its parent.
"""

from __future__ import annotations

import subprocess
import sys

from tools.benchmarks.checkout import Checkout, cloned, resolved

TIMES = 5
MEASURED = """
import os, sys, time
started_s = time.process_time()
from stages.supervision import ended, supervise
supervise("__main__")
forked_s = time.process_time()
from stages import params
from stages.inputs.snapshot import Snapshot
item = {"variant": "float32", "seed": "0"} if sys.argv[1] == "train" else {}
params.load()
loaded_s = time.process_time()
inputs = Snapshot(sys.argv[1], **item)
for _ in range(5):
    inputs.edited_parameters()
inputs.require_unchanged()
print(forked_s - started_s + time.process_time() - loaded_s)
ended()
"""
ENVIRONMENT = """
import time
from stages.environment import preflight
started_s = time.process_time()
list(preflight._folders())
print(time.process_time() - started_s)
"""
SETTINGS = """
import time
from stages.errors import TaskError
from stages.tasks import user_code
started_s = time.process_time()
for _ in range(10):
    with user_code.explained("a task", "cannot be built", TaskError):
        pass
print(time.process_time() - started_s)
"""


def seconds(checkout: Checkout, program: str, stage: str) -> list[float]:
    """Seconds of CPU that a program prints, sorted, each in a new process."""
    command = [sys.executable, "-c", program, stage]
    found = [
        subprocess.run(command, cwd=checkout.root, capture_output=True, text=True, check=True).stdout
        for _ in range(TIMES)
    ]
    return sorted(float(text) for text in found)


def main() -> None:
    """Prints a line for each stage, and the sum for a default pipeline."""
    with cloned(resolved("HEAD")) as checkout:
        checkout.run("dvc", "repro")
        parts = [
            ("environment", 1, ENVIRONMENT),
            ("prepare", 1, MEASURED),
            ("train", 2, MEASURED),
            ("profile", 1, MEASURED),
            ("compare", 1, MEASURED),
            ("settings, ten times", 3, SETTINGS),
        ]
        total_s = 0.0
        for name, number, program in parts:
            found = seconds(checkout, program, name)
            total_s += number * found[TIMES // 2]
            print(f"{name:20} {found[TIMES // 2]:.3f} s ({found[0]:.3f} to {found[-1]:.3f}, n {TIMES}), times {number}")
        print(f"{'a default repro':20} {total_s:.2f} s of CPU")


if __name__ == "__main__":
    main()
