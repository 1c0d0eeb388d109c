"""`profile` that was killed goes on after its complete repeats; what fails beside the timing is one warning line."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from halfstep.profile import extras
from tests.faults.kills import MARK, mark_of
from tests.pipeline.conftest import child_environment
from tests.profile.trace.xspaces import HOST, Space

if TYPE_CHECKING:
    from tests.pipeline.conftest import Checkout

VARIANTS = ("float32", "mixed_bfloat16")
LIMIT_S = 240.0  # another measurement on this machine is waited for
pytestmark = pytest.mark.usefixtures("cold_python")


@dataclass(frozen=True)
class Killed:
    """A checkout in which `profile` is started, and killed when something has happened."""

    checkout: Checkout
    log: Path

    @property
    def output(self) -> str:
        """What the last start printed."""
        return self.log.read_text(encoding="utf-8")

    @property
    def folder(self) -> Path:
        """Of the measurement."""
        (path,) = (self.checkout.root / ".halfstep/profile").iterdir()
        return path

    @property
    def repeats(self) -> int:
        """Complete repeats."""
        for path in (self.checkout.root / ".halfstep/profile").glob("*/measurement.json"):
            return int(json.loads(zlib.decompress(path.read_bytes()))["repeats"])
        return 0

    @property
    def processes(self) -> list[psutil.Process]:
        """The live processes that `profile` started, and itself."""
        return [process for process in psutil.process_iter() if mark_of(process) == str(self.checkout.root)]

    def kept(self, pattern: str) -> list[Path]:
        """Files of the measurement."""
        return sorted((self.checkout.root / ".halfstep/profile").glob(f"*/{pattern}"))

    def kill_when(self, is_due: Callable[[Killed], bool]) -> None:
        """Starts the stage, and kills its process alone: the others must end by themselves."""
        shutil.rmtree(self.checkout.root / "data/profile", ignore_errors=True)  # as DVC does
        with self.log.open("w") as log:
            stage = subprocess.Popen(
                ["python", "-m", "stages.profile"],
                cwd=self.checkout.root,
                env=child_environment(self.checkout.root) | {MARK: str(self.checkout.root)},
                stdout=log,
                stderr=log,
            )
        ends_s = time.monotonic() + LIMIT_S
        while not is_due(self):
            assert stage.poll() is None, self.output
            assert time.monotonic() < ends_s, self.output
            time.sleep(0.005)
        stage.send_signal(signal.SIGKILL)
        assert stage.wait() == -signal.SIGKILL
        _, alive = psutil.wait_procs(self.processes, timeout=15)
        assert [process.name() for process in alive if process.status() != psutil.STATUS_ZOMBIE] == []


@pytest.fixture
def killed(copied: Checkout, tmp_path: Path) -> Killed:
    shutil.rmtree(copied.root / ".halfstep/profile")
    # A round of one step is noise: no interim look ends a measure.
    copied.configure({"profile.processes": 2, "profile.steps_per_round": 1, "profile.target_precision": 0.0001})
    return Killed(copied, tmp_path / "log")


def goes_on_after(repeats: int) -> str:
    return f"profile: goes on after {repeats} repeats of an earlier measurement" if repeats else ""


def kill_again_and_again(killed: Killed, moments: Sequence[Callable[[Killed], bool]]) -> None:
    """Kills one measurement at several moments; each start takes over every complete repeat."""
    before = 0
    for is_due in moments:
        killed.kill_when(is_due)
        assert ("goes on after" in killed.output) == (goes_on_after(before) in killed.output and before > 0)
        assert killed.repeats >= before
        before = killed.repeats


def repeat_counted(number: int) -> Callable[[Killed], bool]:
    return lambda killed: killed.repeats >= number


def results_begun(killed: Killed) -> bool:
    return (killed.checkout.root / "data/profile/float32/summary.json").exists()


def finish(killed: Killed, total: int) -> None:
    """Runs `dvc repro` to the end: what was measured is taken over."""
    repeats, files = killed.repeats, {path: path.stat().st_mtime_ns for path in killed.kept("repeat-*.json")}
    output = killed.checkout.check_output("dvc", "repro")
    assert goes_on_after(repeats) in output
    assert killed.repeats == total
    for name in (*VARIANTS, "_control"):
        summary = killed.checkout.json(f"data/profile/{name}/summary.json")
        assert (summary["resumed"], summary["protocol"]["processes"]) == (repeats, total)
    assert [path.stat().st_mtime_ns for path in list(files)[:repeats]] == list(files.values())[:repeats]
    assert set(verdicts(killed.checkout)) == {"verdict", "verdict_inference_b1"}
    assert {run.info.status for run in killed.checkout.runs()} == {"FINISHED", "KILLED"}
    assert killed.processes == []


def verdicts(checkout: Checkout) -> dict[str, str]:
    candidate = checkout.json("data/compare/comparison.json")["candidates"]["mixed_bfloat16"]
    return {name: value for name, value in candidate.items() if name.startswith("verdict")}


def test_measurement_that_is_killed_three_times_goes_on(killed: Killed) -> None:
    """At last while the results were written. A trace without steps is a warning."""
    moments = [repeat_counted(1), lambda killed: bool(killed.kept("traces/*")), results_begun]
    kill_again_and_again(killed, moments)
    assert killed.repeats == 2
    (trace,) = killed.kept("traces/mixed_bfloat16/**/*.xplane.pb")
    space = Space()
    space.event(HOST, "python", "no step", 0, 10)
    space.save(trace)
    finish(killed, 2)
    for name in (*VARIANTS, "_control"):
        summary = killed.checkout.json(f"data/profile/{name}/summary.json")
        assert [line for line in summary["warnings"] if "it is not used" in line] == (
            ["the trace has none of the 2 steps of profile.trace_steps, so it is not used"]
            if name == "mixed_bfloat16"
            else []
        )
        assert ("profiler/step_time_ms" in summary["metrics"]) == (name != "mixed_bfloat16")


# Runs in every Python process that has it in its search path. In a worker, another profiler is running.
PROFILER_RUNS = """
import importlib.util
import sys


class Finder:
    def find_spec(self, name, path=None, target=None):
        if name != "halfstep.profile.worker":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def execute_and_occupy(module):
            execute(module)
            from tensorflow.python.profiler import profiler_v2

            profiler_v2._profiler = object()

        spec.loader.exec_module = execute_and_occupy
        return spec


sys.meta_path.insert(0, Finder())
"""


def warning_lines(output: str) -> list[str]:
    """The warnings but that other programs kept the machine busy, as when tests run side by side."""
    lines = [line for line in output.splitlines() if line.startswith("profile: warning: ")]
    return sorted(line for line in lines if "Other programs" not in line and "still changed" not in line)


def begins(lines: Sequence[str], expected: Sequence[tuple[str, str]]) -> bool:
    """Whether each line is about one of these arms and extras, in their order."""
    starts = sorted(f"profile: warning: {extras.consequence(*what)} (" for what in expected)
    return len(lines) == len(starts) and all(line.startswith(start) for line, start in zip(lines, starts, strict=True))


def test_what_fails_beside_the_timing_is_a_warning(copied: Checkout, tmp_path: Path) -> None:
    """A profiler that cannot start, and weights that are damaged. Another occasion is measured anew, and both stay."""
    (tmp_path / "sitecustomize.py").write_text(PROFILER_RUNS)
    model = copied.root / "data/train/float32-0/model.keras"
    content = model.read_bytes()
    model.unlink()  # it may be a link into DVC's cache
    model.write_bytes(content[:-1])
    (before,) = kept_folders(copied)
    copied.configure({"profile.occasion": "monday"})

    done = copied.stage("profile", PYTHONPATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    lines = warning_lines(done.stdout)
    traced = [(name, what) for name in (*VARIANTS, "_control") for what in (extras.ACCOUNT, extras.TRACE)]
    assert begins(lines, [*traced, ("mixed_bfloat16", extras.SAME_WEIGHTS)]), done.stdout
    assert sum("Another profiler is running" in line for line in lines) == 6
    assert sum("model.keras" in line for line in lines) == 1
    assert before in kept_folders(copied)
    assert len(kept_folders(copied)) == 2
    assert "resumed" not in copied.json("data/profile/float32/summary.json")

    model.write_bytes(content)
    assert copied.stage("compare").returncode == 0
    assert set(verdicts(copied)) == {"verdict", "verdict_inference_b1"}
    assert verdicts(copied)["verdict_inference_b1"] != "adopt"
    report = (copied.root / "data/compare/report.html").read_text(encoding="utf-8")
    assert extras.consequence("mixed_bfloat16", extras.TRACE) in report
    speedup = copied.json("data/compare/comparison.json")["candidates"]["mixed_bfloat16"]["speedup"]["train"]
    assert speedup["occasions"] == 2


def kept_folders(checkout: Checkout) -> list[Path]:
    return sorted((checkout.root / ".halfstep/profile").iterdir())


@pytest.fixture
def small_disk(copied: Checkout) -> Iterator[Path]:
    """A file system that has no room for a trace, for what is kept of measurements."""
    folder = copied.root / ".halfstep/profile"
    shutil.rmtree(folder)
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
    if os.getuid() or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("a file system may not be mounted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_full_disk_while_tracing_is_a_warning(copied: Checkout, small_disk: Path) -> None:
    copied.configure({"profile.trace_steps": 30})  # several times of what there is room for
    done = copied.stage("profile")
    assert done.returncode == 0, done.stderr
    lines = warning_lines(done.stdout)
    assert begins(lines, [(name, extras.TRACE) for name in (*VARIANTS, "_control")]), done.stdout
    assert all("(the trace cannot be written (No space left on device))" in line for line in lines), lines
    assert len(list(small_disk.glob("*/repeat-*.json"))) == 2
