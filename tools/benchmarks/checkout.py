"""Clones of the project at a commit, in which a benchmark runs stages as a user does."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.params_file import set_parameters

ROOT = Path(__file__).parents[2]
_STAGE = re.compile(r"Running stage '(.+)':")
_SPEEDUP = re.compile(r"profile: .*\b\d\.\d\d(?:×| ± )")  # of `profile`, after its first repeat, or its second process


@dataclass(frozen=True)
class Checkout:
    """A clone of the project. Its MLflow store is a file in it."""

    root: Path

    def run(self, *command: str) -> float:
        """Runs a command with this Python's environment active, and returns the seconds that it took.

        Raises:
            RuntimeError: the command failed; the message ends with what it printed.
        """
        started_s = time.monotonic()
        done = subprocess.run(
            command, cwd=self.root, env=_variables(self.root), capture_output=True, text=True, check=False
        )
        seconds = time.monotonic() - started_s
        if done.returncode:
            output = (done.stdout + done.stderr)[-2000:]
            raise RuntimeError(f"`{' '.join(command)}` ended with status {done.returncode}:\n{output}")
        return seconds

    def timed_stages(self, *command: str) -> tuple[float, dict[str, float], float | None]:
        """Runs `dvc repro` or the like.

        Returns:
            The seconds that it took, those of each stage, and those until the first line with a speed-up.

        Raises:
            RuntimeError: the command failed; the message ends with what it printed.
        """
        started_s, began, lines, first_s = time.monotonic(), dict[str, float](), list[str](), None
        variables = _variables(self.root) | {"PYTHONUNBUFFERED": "1"}
        with subprocess.Popen(
            command, cwd=self.root, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            assert process.stdout is not None, "it is a pipe"
            for line in process.stdout:
                lines.append(line)
                if match := _STAGE.match(line):
                    began[match[1]] = time.monotonic()
                elif first_s is None and _SPEEDUP.match(line):
                    first_s = time.monotonic() - began.get("profile", started_s)
        if process.returncode:
            raise RuntimeError(
                f"`{' '.join(command)}` ended with status {process.returncode}:\n{''.join(lines)[-2000:]}"
            )
        ends = [*list(began.values())[1:], time.monotonic()]
        seconds = {name: end - began[name] for name, end in zip(began, ends, strict=False)}  # none of a single stage
        return time.monotonic() - started_s, seconds, first_s

    def stage(self, name: str, *arguments: str) -> float:
        """Runs a stage without DVC, and returns the seconds that it took."""
        return self.run("python", "-m", f"stages.{name}", *arguments)

    def train(self, variants: Sequence[str]) -> None:
        """Runs the stages until the trainings of the variants with seed 0 have ended."""
        self.stage("environment")
        self.stage("prepare")
        for variant in variants:
            self.stage("train", "--variant", variant, "--seed", "0")

    def configure(self, values: Mapping[str, Any]) -> None:
        """Sets parameters by their dotted names; the others stay as the commit has them."""
        set_parameters(self.root, values)

    def training_s(self, stage: str) -> float:
        """Seconds in `fit` of a stage such as `train@float32-0`."""
        path = self.root / "data/train" / stage.removeprefix("train@") / "metrics.json"
        return float(json.loads(path.read_text(encoding="utf-8"))["train_time_s"])

    def summary(self, arm: str) -> dict[str, Any]:
        """`summary.json` of one arm of the measurement."""
        return dict(json.loads((self.root / f"data/profile/{arm}/summary.json").read_text(encoding="utf-8")))

    def comparison(self) -> dict[str, Any]:
        """`comparison.json`."""
        return dict(json.loads((self.root / "data/compare/comparison.json").read_text(encoding="utf-8")))


@contextmanager
def cloned(commit: str) -> Iterator[Checkout]:
    """A clone of the project at a commit, in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="halfstep-benchmark-") as folder:
        checkout = Checkout(Path(folder) / "halfstep")
        _git("clone", "--quiet", "--shared", "--no-checkout", str(ROOT), str(checkout.root))
        _git("-C", str(checkout.root), "checkout", "--quiet", "--detach", commit)
        yield checkout


def resolved(commit: str) -> str:
    """The full name of a commit of this repository."""
    return _git("-C", str(ROOT), "rev-parse", "--verify", f"{commit}^{{commit}}")


def half_width(interval: Mapping[str, float]) -> float:
    """Half the width of an interval in `comparison.json`."""
    return (interval["high"] - interval["low"]) / 2


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], capture_output=True, text=True, check=True).stdout.strip()


def _variables(root: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MLFLOW_", "DVC_", "GIT_"))}
    path = f"{Path(sys.executable).parent}{os.pathsep}{kept.get('PATH', '')}"
    return {**kept, "PATH": path, "DVC_NO_ANALYTICS": "1", "DVC_SITE_CACHE_DIR": str(root.parent / "dvc")}
