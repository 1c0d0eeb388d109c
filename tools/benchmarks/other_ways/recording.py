"""Records processes that train alone, one after the other, and repeats of halfstep, in which three take turns."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import chdir, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np

from stages import files
from stages.fork_server import start_server, stop_servers
from stages.machine.fingerprint import fingerprint
from stages.params import ModelParams, Params, ProfileParams, TaskParams, TrainParams, Variant
from stages.prepare.own_task import prepare_task
from stages.profile.extras import Wanted
from stages.profile.records import ArmConfig
from stages.profile.repeats import Repeats, amounts
from stages.profile.runner import Context, measure
from stages.profile.worker_process import WorkerProcess
from stages.results.profile import Round
from stages.tasks.spec import TaskSpec
from tools.benchmarks.load import other_load
from tools.benchmarks.other_ways.halfstep import ARMS, BATCH_SIZE
from tools.benchmarks.other_ways.recordings import FIRST_EPOCHS, LOADS, NO_TURN, Durations, Fit, Recording, Repeat

ROOT = Path(__file__).parents[3]
EPOCHS = 30
TASK = "tools.benchmarks.other_ways.digits:build"
AT_ONCE = 2  # repeats of a measurement; the first look comes after three
STEPS = 10  # of a turn, as `profile` chooses for steps of 3.6 to 4 ms; the same in all repeats
UNREACHED = 1e-6  # half-width at which a measure would end before all its rounds


def record(folder: Path, load: str, fits: int, repeats: int, rounds: int, goes_on: Callable[[], bool]) -> Recording:
    """Records what is missing, and writes the file after each process and each repeat.

    Args:
        folder: of the recordings.
        load: a name in `LOADS`.
        fits: processes that train alone.
        repeats: repeats of halfstep, an even number.
        rounds: rounds in each of them.
        goes_on: whether there is time for another process or repeat.
    """
    found = Recording.read(folder, load) or Recording(load, about(load))
    with other_load(LOADS[load]), prepared() as spec:
        while len(found.fits) < fits and goes_on():
            began_s, fit, seconds = time.time(), *fit_in_process(EPOCHS)
            since_s = began_s - (found.fit_began_s[0] if found.fits else began_s)
            found = replace(
                found,
                fits=(*found.fits, fit),
                fit_s=(*found.fit_s, seconds),
                fit_began_s=(*found.fit_began_s, began_s),
            )
            found.write(folder)
            print(f"{load}: process {len(found.fits)} of {fits}, {seconds:.1f} s, after {since_s:.0f} s", flush=True)
        while len(found.repeats) < repeats and goes_on():
            started_s = time.monotonic()
            found = replace(found, repeats=(*found.repeats, *repeats_of(spec, rounds, len(found.repeats))))
            found.write(folder)
            seconds = time.monotonic() - started_s
            print(f"{load}: repeat {len(found.repeats)} of {repeats}, {seconds:.1f} s", flush=True)
    return found


def about(load: str) -> str:
    """Machine, versions and load in words."""
    machine = fingerprint()
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    share = f"another program takes {LOADS[load]:.0%} of one core" if LOADS[load] else "no other load"
    return f"{machine['device']}; {versions}; {share}"


def fit_in_process(epochs: int, slower_by: float = 0.0) -> tuple[Fit, float]:
    """Trains in a new interpreter; the durations, and the wall time of the process."""
    with tempfile.TemporaryDirectory(prefix="halfstep-benchmark-") as folder:
        out = Path(folder) / "fit.npz"
        command = [sys.executable, "-m", "tools.benchmarks.other_ways.fit", "--epochs", str(epochs)]
        started_s = time.monotonic()
        subprocess.run(
            [*command, "--slower-by", str(slower_by), "--out", str(out)], cwd=ROOT, check=True, capture_output=True
        )
        return Fit.read(out), time.monotonic() - started_s


@contextmanager
def prepared() -> Iterator[TaskSpec]:
    """The training as a task of halfstep, in a temporary working folder."""
    task = TaskParams(name=TASK, path=str(ROOT))
    train = TrainParams(batch_size=BATCH_SIZE, variants=("float32",), epochs=FIRST_EPOCHS)
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    with (
        tempfile.TemporaryDirectory(prefix="halfstep-benchmark-") as folder,
        chdir(folder),
        mock.patch.dict(os.environ, PYTHONPATH=path),
    ):
        prepare_task(Params(task=task, train=train, variants={"float32": Variant(policy="float32")}), files.PREPARED)
        yield TaskSpec(task, ModelParams(), train, prepared_sha256=files.verify_manifest(files.PREPARED))


def repeats_of(spec: TaskSpec, rounds: int, seed: int) -> tuple[Repeat, ...]:
    """A measurement of as many repeats as end before the first look, by the code of `profile`: all arms are equal."""
    config = ArmConfig(spec, Variant(policy="float32"), seed=0)
    import_s = _import_s(config)
    profile = ProfileParams(
        inference_batch_sizes=(),
        processes=AT_ONCE,
        rounds=rounds,
        steps_per_round=STEPS,
        target_precision=UNREACHED,
        seed=seed,
    )
    context = Context(Wanted(traces=False), began_s=time.monotonic())
    with tempfile.TemporaryDirectory() as folder:
        kept = Repeats(Path(folder), amounts(profile, context.min_speedup))
        found = measure(dict.fromkeys(ARMS, config), ARMS[0], profile, context, kept)
    times = [found.records[name].times.rounds for name in ARMS]
    start_s = ((found.protocol.stage_seconds or 0.0) - found.protocol.timing_seconds) / AT_ONCE
    return tuple(
        Repeat(_turns(times, number, rounds), found.protocol.steps_per_round, start_s, import_s)
        for number in range(AT_ONCE)
    )


def _import_s(config: ArmConfig) -> float:
    """Seconds until an interpreter has imported TensorFlow and built a model; `measure` then finds it ready."""
    started_s = time.monotonic()
    stop_servers()
    start_server(config.variant.variables)
    with closing(WorkerProcess("import", config)) as worker:
        worker.call("began_s")
    return time.monotonic() - started_s


def _turns(arms: Sequence[list[Round]], number: int, rounds: int) -> Durations:
    """Microseconds of each arm's turns in a repeat, by round."""
    found = np.full((len(arms), rounds), NO_TURN, dtype=np.int32)
    for arm, rows in enumerate(arms):
        for row in rows:
            if row.process == number:
                found[arm, row.round] = round(1e3 * row.round_time_ms)
    return found
