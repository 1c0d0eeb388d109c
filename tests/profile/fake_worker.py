"""Worker processes that answer at once, without TensorFlow, and some that fail as on a GPU without enough memory."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from stages.profile.device_memory import OutOfMemory

from stages.profile.records import ArmConfig, ArmSettings, Calibration, TraceRecord
from stages.results.profile import Configuration, InForce

GIB = 2**30
FOLDER = "HALFSTEP_TEST_FOLDER"  # where workers leave what they did
STEP_MS = {"float32": 8.0, "mixed_bfloat16": 4.0, "mixed_float16": 2.0}
# As in the documentation of OpenXLA (xla/docs/hlo-opt, autotuning), shortened.
CHOICES = """\
version: 3
results {{
  device: "CUDA: 8.0, Cores: 108, GPU clock: 1.41 GHz, Memory bandwidth: 1555 GB/s, L2 cache: 40 MB"
  hlo: "{{\\n  tmp_0 = f16[16,51]{{1,0}} parameter(0)\\n  ROOT tmp_5 = f16[16,16]{{1,0}} dot(tmp_0, tmp_0)\\n}}"
  result {{
    run_time {{
      nanos: {nanos}
    }}
    triton {{
      block_m: 32
      num_warps: {config}
    }}
  }}
}}
"""
CHOICES_READ = CHOICES.replace("    run_time {{\n      nanos: {nanos}\n    }}\n", "")
CONFIGURATION = Configuration(
    device="CPU",
    batch_size=8,
    parameters=1,
    optimizer="adam",
    intra_op_threads=0,
    inter_op_threads=0,
    op_determinism=False,
    layer_widths=(8,),
    data_sha256="d" * 64,
)


class FakeWorker:
    """A worker that answers at once."""

    def __init__(self, config: ArmConfig) -> None:
        self.entry, self.step_ms = config.variant, STEP_MS[config.variant.policy]
        if config.xla_choices is not None:
            config.xla_choices.write_text(CHOICES.format(nanos=os.getpid(), config=self.entry.policy))

    def settings(self) -> ArmSettings:
        device = "GPU" if (Path(os.environ[FOLDER]) / "gpu").exists() else "CPU"
        return ArmSettings(
            CONFIGURATION.model_copy(update={"device": device}),
            InForce(policy=self.entry.policy, xla=False, tf32=True, onednn=self.entry.onednn),
        )

    def warm_up(self, steps: int) -> None:
        log("begin")
        time.sleep(0.05)
        log("end")

    def calibrate(self) -> Calibration:
        return Calibration(self.step_ms, 0.9 * self.step_ms, 0, 7 * GIB)

    def prepare_inference(self, sizes: tuple[int, ...]) -> dict[int, float]:
        return dict.fromkeys(sizes, self.step_ms / 10)

    def train_round(self, steps: int, lead_in: int = 0) -> float:
        return steps * self.step_ms

    train_round_cached = train_round

    def prepare_cached(self) -> None: ...

    def train_steps(self, steps: int, lead_in: int = 0) -> list[float]:
        return [self.step_ms] * steps

    def infer(self, size: int, calls: int) -> list[float]:
        return [self.step_ms / 10] * calls

    def times_continued(self) -> int:
        return 0

    def trace(self, directory: Path, steps: int) -> TraceRecord:
        log(f"trace {directory.name}")
        return TraceRecord(directory, steps, self.step_ms, self.step_ms, {})

    def same_weights(self, trained: Path) -> Any:
        return np.zeros(3)

    def warnings(self) -> list[str]:
        return []


def log(what: str) -> None:
    with (Path(os.environ[FOLDER]) / "log").open("a") as file:
        file.write(f"{what}\n")


def serve_fake(connection: Connection, config: ArmConfig) -> None:
    worker = FakeWorker(config)
    with suppress(EOFError):
        while True:
            method, arguments = connection.recv()
            connection.send((True, getattr(worker, method)(*arguments)))


def alive_workers() -> int:
    """Marks this process, and counts the marked ones that live."""
    folder = Path(os.environ[FOLDER]) / "alive"
    folder.mkdir(exist_ok=True)
    (folder / str(os.getpid())).touch()
    return sum(psutil.pid_exists(int(path.name)) for path in folder.iterdir())


def serve_out_of_memory_beside_two(connection: Connection, config: ArmConfig) -> None:
    """Of three workers at once, the last one runs out of memory."""
    if alive_workers() > 2:
        connection.recv()
        connection.send((False, OutOfMemory(8, 3 * GIB, "OOM when allocating tensor")))
    else:
        serve_fake(connection, config)


def serve_dies_beside_another(connection: Connection, config: ArmConfig) -> None:
    """Of two workers at once, the second one dies, as of a failed check in C++."""
    if alive_workers() > 1:
        os._exit(1)
    serve_fake(connection, config)


def serve_short_of_memory(connection: Connection, config: ArmConfig) -> None:
    """Runs out of memory in one method, where too many workers live at once: the file `short` has both."""
    failing, most = (Path(os.environ[FOLDER]) / "short").read_text().split()
    worker = FakeWorker(config)
    alive_workers()
    with suppress(EOFError):
        while True:
            method, arguments = connection.recv()
            if method != failing or alive_workers() <= int(most):
                connection.send((True, getattr(worker, method)(*arguments)))
                continue
            if method == "trace":
                arguments[0].mkdir(parents=True)
                (arguments[0] / "half.xplane.pb").touch()
            connection.send((False, OutOfMemory(8, 3 * GIB, f"OOM in {method}")))


def serve_always_out_of_memory(connection: Connection, config: ArmConfig) -> None:
    connection.recv()
    connection.send((False, OutOfMemory(8, 3 * GIB, "OOM when allocating tensor")))
    with suppress(EOFError):
        connection.recv()
