"""What it saves to load what XLA has compiled, and whether a loaded program is as fast. Markdown tables.

    python -m tools.compiling            # both networks: a quarter of an hour
    python -m tools.compiling --only vit

Each network is trained with `xla: true`, also on a CPU. First steps: processes that compile and processes that load, in
turns. Step: an arm that compiles in each repeat, one that loads, and a copy of the first, in turns. Stage:
`profile` of float32, its copy and mixed_bfloat16, with the cache and without it, in turns.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, chdir, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import psutil

from halfstep.machine import fingerprint
from halfstep.params.schema import DataParams, ModelParams, ProfileParams, TaskParams, TrainParams, Variant
from halfstep.prepare.images.pipeline import prepare
from halfstep.profile import compile_cache
from halfstep.profile.records import ArmSettings, FirstStep, Measurement
from halfstep.profile.repeats import Repeats, amounts
from halfstep.profile.runner import MeasurementContext, measure
from halfstep.profile.stopping_rule import tables
from halfstep.profile.worker_process import WorkerProcess
from halfstep.stats.speedup import speedup_of
from halfstep.system import files
from halfstep.system.fork_server import stop_servers
from halfstep.tasks.trial import Trial
from halfstep.words.text import TRAIN

NETWORKS = {"resnet50": ModelParams(name="resnet50"), "vit": ModelParams(name="tools.compiling:vit")}
COMPILES, LOADS = "compiles", "loads"
_OPENED = compile_cache.opened


def vit(input_shape: tuple[int, int, int], classes: int) -> Any:
    """A vision transformer of two blocks, with patches of 8 x 8 pixels and a width of 128."""
    import keras
    from keras import layers

    pixels = keras.Input(input_shape, dtype="uint8")
    x = layers.Conv2D(128, 8, strides=8)(layers.Rescaling(1 / 255)(pixels))
    x = layers.Reshape((-1, 128))(x)
    for _ in range(2):
        y = layers.LayerNormalization()(x)
        x = layers.Add()([x, layers.MultiHeadAttention(4, 32)(y, y)])
        y = layers.Dense(512, activation="gelu")(layers.LayerNormalization()(x))
        x = layers.Add()([x, layers.Dense(128)(y)])
    x = layers.Dense(classes)(layers.GlobalAveragePooling1D()(layers.LayerNormalization()(x)))
    return keras.Model(pixels, layers.Activation("softmax", dtype="float32")(x))


def trial_of(network: str, policy: Any) -> Trial:
    """The training of a network with XLA, on the digits at 64 x 64 pixels."""
    variant = Variant(policy=policy, xla=True)
    return Trial(TaskParams(), NETWORKS[network], TrainParams(batch_size=16), variant, 0, name=policy)


def first_steps(trial: Trial, times: int) -> dict[str, list[FirstStep]]:
    """The first steps of processes that compile, and of those that load, in turns."""
    found: dict[str, list[FirstStep]] = {COMPILES: [], LOADS: []}
    for _ in range(times):
        shutil.rmtree(compile_cache.FOLDER, ignore_errors=True)
        for how in found:
            with compile_cache.opened(trial, "0") as given, closing(WorkerProcess(trial.name, given)) as worker:
                assert compile_cache.has_programs(given) is (how == LOADS)
                worker.call(ArmSettings, "settings")  # the model is built
                process = psutil.Process(worker.pid)
                before_s = sum(process.cpu_times()[:2])
                first = worker.call(FirstStep, "warm_up", 1)
                found[how].append(replace(first, cpu_s=sum(process.cpu_times()[:2]) - before_s))
    return found


def as_fast(trial: Trial) -> str:
    """The ratio of a step that each process compiles, and of one that is loaded; beside it that of two that compile."""
    others = {COMPILES: trial, LOADS: trial, files.CONTROL: trial}
    arms = {name: replace(one, name=name) for name, one in others.items()}
    with compile_cache.opened(arms[LOADS], "0") as given, closing(WorkerProcess(LOADS, given)) as worker:
        worker.call(FirstStep, "warm_up", 1)
    with mock.patch.object(compile_cache, "opened", _opened_if_it_loads):
        measurement = measured(arms, COMPILES, ProfileParams(inference_batch_sizes=(), max_seconds=60, processes=6))
    return "; ".join(
        f"{what} {ratio.ratio:.3f} ({ratio.low:.3f} to {ratio.high:.3f})"
        for what, name in (("loaded", LOADS), ("compiled again", files.CONTROL))
        for ratio in [speedup_of(TRAIN, tables(measurement.records[COMPILES]), tables(measurement.records[name]))]
    )


@contextmanager
def _opened_if_it_loads(trial: Trial, number: str) -> Iterator[Trial]:
    with ExitStack() as stack:
        yield stack.enter_context(_OPENED(trial, number)) if trial.name == LOADS else trial


def stage_seconds(network: str, *, cached: bool) -> tuple[float, int]:
    """Seconds and repeats of the timing of three arms, without the imports."""
    shutil.rmtree(compile_cache.FOLDER, ignore_errors=True)
    arms = {policy: trial_of(network, policy) for policy in ("float32", "mixed_bfloat16")}
    arms[files.CONTROL] = arms["float32"]
    with ExitStack() as stack:
        if not cached:
            stack.enter_context(mock.patch.object(compile_cache, "opened", _not_opened))
        profile = ProfileParams(inference_batch_sizes=(1, 32), processes=4, rounds=8)
        started_s = time.monotonic()
        repeats = measured(arms, "float32", profile).repeats
        return time.monotonic() - started_s, repeats


@contextmanager
def _not_opened(trial: Trial, _: str) -> Iterator[Trial]:
    yield trial


def measured(arms: dict[str, Trial], baseline: str, profile: ProfileParams) -> Measurement:
    """Measures as `profile` does, without traces."""
    with tempfile.TemporaryDirectory() as folder:
        kept = Repeats(Path(folder), amounts(profile, 1.05))
        context = MeasurementContext(traces=False, trainings_s=200, began_s=time.monotonic(), keeps_servers=True)
        return measure(arms, baseline, profile, context, kept)


def main() -> None:
    """Measures, and prints what was found as it comes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=NETWORKS, help="one network")
    parser.add_argument("--times", type=int, default=3, help="pairs of processes, and of stages")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="halfstep-compiling-") as folder, chdir(folder):
        prepare(DataParams(image_size=64), files.PREPARED)
        files.write_json(files.ENVIRONMENT_FILE, fingerprint.fingerprint())
        for network in [arguments.only] if arguments.only else NETWORKS:
            for policy in ("float32", "mixed_bfloat16"):
                _print_first_steps(network, first_steps(trial_of(network, policy), arguments.times), policy)
            print(f"{network}: step, compiled / {as_fast(trial_of(network, 'float32'))}", flush=True)
            for _ in range(arguments.times):
                seconds = [stage_seconds(network, cached=cached) for cached in (False, True)]
                print(f"{network}: profile {seconds[0]} without, {seconds[1]} with the cache (s, repeats)", flush=True)
        stop_servers()


def _print_first_steps(network: str, found: dict[str, list[FirstStep]], policy: str) -> None:
    """The median of each, and their ratio."""
    for field, what in (("cpu_s", "CPU seconds of the first step"), ("seconds", "seconds of the first step")):
        values = {how: [getattr(step, field) for step in steps] for how, steps in found.items()}
        middle = {how: statistics.median(of_one) for how, of_one in values.items()}
        shown = ", ".join(
            f"{how} {middle[how]:.2f} ({min(each):.2f} to {max(each):.2f})" for how, each in values.items()
        )
        print(f"{network} {policy}: {what}: {shown}; ratio {middle[LOADS] / middle[COMPILES]:.2f}", flush=True)


if __name__ == "__main__":
    main()
