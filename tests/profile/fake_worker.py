"""Worker processes that answer at once, without TensorFlow, and fail where a test says so."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from halfstep.operations.op_kinds import Layers
from halfstep.profile.records import (
    FULL_DISK,
    ArmSettings,
    Calibration,
    FirstStep,
    TracedStretch,
    TraceRecord,
)
from halfstep.profile.short_trace import ShortTrace
from halfstep.results.audit import ModelAudit
from halfstep.results.profile import AccountRow, Configuration, InForce
from halfstep.tasks.trial import Trial

GIB = 2**30
FOLDER = "HALFSTEP_TEST_FOLDER"  # where workers leave what they did, and find what fails
NOISE = 0.3  # of the logarithm of a time: so wide that nothing is decided
STEP_MS = {"float32": 8.0, "mixed_bfloat16": 4.0, "mixed_float16": 2.0}
IN_FLOAT32 = 0.8  # of the step, with layers in float32
CONFIGURATION = Configuration(
    device="CPU",
    parameters=1,
    optimizer="adam",
    op_determinism=False,
    layer_widths=(8,),
    data_sha256="d" * 64,
)


class FakeTrace(ShortTrace):
    """A short trace of one turn."""

    def __init__(self, step_ms: float) -> None:
        super().__init__(Path(), (), Layers(), {"step_ms": str(step_ms)})

    def read(self) -> list[TracedStretch]:
        step_ms = float(self.graph_dtypes["step_ms"])
        return [TracedStretch(step_ms, [AccountRow(0, "host", time_ms=step_ms)])]


class FakeWorker:
    """A worker whose steps take `STEP_MS` by its own account, with noise as of `set_noise`."""

    def __init__(self, trial: Trial) -> None:
        self.entry, self.step_ms = trial.variant, STEP_MS[trial.variant.policy]
        self.batch_size, self.programs = trial.train.batch_size, trial.programs
        with suppress(OSError):
            self.step_ms = float((Path(os.environ[FOLDER]) / f"step-{self.entry.policy}").read_text())
        self.step_ms *= IN_FLOAT32 if self.entry.float32_layers else 1.0
        self.random, noise = np.random.default_rng(os.getpid()), Path(os.environ[FOLDER]) / "noise"
        self.noise = float(noise.read_text()) if noise.exists() else NOISE
        self.times = 0
        signal.signal(signal.SIGCONT, self.count)
        log("start", self.entry.policy)

    def count(self, *_: object) -> None:
        self.times += 1

    def settings(self) -> ArmSettings:
        device = "GPU" if (Path(os.environ[FOLDER]) / "gpu").exists() else "CPU"
        return ArmSettings(
            CONFIGURATION.model_copy(update={"device": device}),
            InForce(
                policy=self.entry.policy,
                xla=False,
                tf32=True,
                onednn=self.entry.uses_onednn,
                batch_size=self.batch_size,
            ),
        )

    def began_s(self) -> float:
        return time.monotonic()

    def warm_up(self, steps: int, drained_batches: int = 0) -> FirstStep:
        """Compiles or loads a program; a test says what cannot be loaded, and when the disk is full."""
        seconds, fails = 5.0, Path(os.environ[FOLDER]) / "programs-fail"
        if self.programs is not None:
            program = self.programs / "program"
            log("load" if program.exists() else "compile", self.programs.name.partition("-")[2])
            if fails.exists() and (fails.read_text() == FULL_DISK or program.exists()):
                raise ValueError(fails.read_text())
            seconds = 0.5 if program.exists() else 5.0
            program.write_text("program")
        return FirstStep(seconds, 6.0)

    def calibrate(self, sizes: tuple[int, ...]) -> Calibration:
        latencies = dict.fromkeys(sizes, self.step_ms / 10)
        return Calibration(self.step_ms, 0.9 * self.step_ms, 0, 7 * GIB, latencies, dict.fromkeys(sizes, 1))

    def prepare_inference(self, sizes: tuple[int, ...]) -> None: ...

    def noisy(self, time_ms: float) -> float:
        return float(time_ms * np.exp(self.noise * self.random.normal()))

    def train_round(self, steps: int, lead_in: int = 0, buffered_batches: int = 0) -> float:
        log("turn", self.entry.policy)
        return self.noisy(steps * self.step_ms)

    def train_round_cached(self, steps: int) -> float:
        log("cached", self.entry.policy)
        return self.noisy(steps * self.step_ms / 2)

    def prepare_cached(self) -> None: ...

    def train_steps(self, steps: int, lead_in: int = 0) -> list[float]:
        return [self.noisy(self.step_ms) for _ in range(steps)]

    def infer(self, size: int, calls: int) -> list[float]:
        return [self.noisy(self.step_ms / 10) for _ in range(calls)]

    def times_continued(self, least: int = 0) -> int:
        for _ in range(1000):
            if self.times >= least:
                break
            time.sleep(1e-3)
        return self.times

    def trace(self, directory: Path, steps: int) -> TraceRecord:
        log("trace", directory.name)
        directory.mkdir(parents=True)
        (directory / "one.xplane.pb").touch()
        return TraceRecord(directory, steps, self.step_ms, self.step_ms, {})

    def steps_run(self) -> int:
        return 0

    def begin_account(self, least_steps: int) -> None: ...

    def account_window(self, steps: int, lead_in: int) -> None: ...

    def end_account(self) -> ShortTrace:
        return FakeTrace(self.noisy(self.step_ms))

    def audit(self) -> ModelAudit:
        return ModelAudit(layers=())

    def same_weights(self, trained: Path) -> Any:
        log("weights", self.entry.policy)
        return np.zeros(3)


def log(what: str, arm: str) -> None:
    with (Path(os.environ[FOLDER]) / "log").open("a") as file:
        file.write(f"{what} {arm}\n")


def events(folder: Path) -> list[str]:
    """What the workers did, in order."""
    return (folder / "log").read_text().splitlines()


def children() -> list[str]:
    """The names of the processes that halfstep has started and that run; those of libraries have none."""
    return [process.name for process in multiprocessing.active_children() if not process.name.startswith("Process-")]


def fail(folder: Path, method: str, policy: str = "", after: int = 0) -> None:
    """From here on, workers fail in this method, after so many calls of it by all of them."""
    (folder / f"fail-{method}-{policy}").write_text(str(after))


def set_noise(folder: Path, noise: float) -> None:
    """The standard deviation of the logarithm of a time from here on."""
    (folder / "noise").write_text(str(noise))


def set_step(folder: Path, policy: str, step_ms: float) -> None:
    """The time of a step of a policy from here on."""
    (folder / f"step-{policy}").write_text(str(step_ms))


def _fails(method: str, policy: str) -> bool:
    for path in (Path(os.environ[FOLDER]) / f"fail-{method}-{name}" for name in (policy, "")):
        if path.exists():
            left = int(path.read_text())
            path.write_text(str(left - 1))
            return left <= 0
    return False


def serve_fake(connection: Connection, trial: Trial) -> None:
    worker = FakeWorker(trial)
    with suppress(EOFError, ConnectionError):
        while True:
            method, arguments = connection.recv()
            if _fails(method, worker.entry.policy):
                connection.send(f"{method} does not work here")
            else:
                try:
                    answer = getattr(worker, method)(*arguments)
                except ValueError as error:
                    answer = str(error)
                connection.send(answer)


def serve_always_out_of_memory(connection: Connection, trial: Trial) -> None:
    connection.recv()
    connection.send("train.batch_size is 8, too large for the memory")
    with suppress(EOFError):
        connection.recv()
