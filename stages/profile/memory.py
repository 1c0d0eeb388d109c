"""The largest batch that still trains, found by trying: each size in a child process that is allowed to die of it.

On a CPU, where memory does not simply run out, what counts is the child's own memory, from before its model is built to
its peak. It is ended from outside as soon as it has more than the limit, or once the machine has hardly any left: a
limit on its address space (RLIMIT_AS) would not do, for TensorFlow reserves many times what it uses.
"""

from __future__ import annotations

import multiprocessing
import resource
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil

from stages import files
from stages.errors import HalfstepError, ProfileError
from stages.params import ProfileParams
from stages.profile.records import Task
from stages.profile.servers import start_process

LARGEST = 65_536  # images: as many as train.batch_size may be
GRID = 8  # sizes above it are multiples of it, which is what matrix units like
TOLERANCE = 0.125
STEPS = 2  # the first also holds what compiling takes, the second what the first left behind
POLL_S = 0.01
LEAST_FREE = 0.05  # share of the machine's memory
MIB = 2**20


@dataclass(frozen=True)
class LargestBatch:
    """The largest batch that was found to train.

    Attributes:
        batch_size: images a step; 0 where not even one image can be trained on.
        limit_mib: memory that could be used, in MiB; None on a GPU, where it is all that the device has.
        peak_mib: memory that `batch_size` took, in MiB: of the device's allocator, on a CPU of the process.
        tried: `(batch size, does it fit)` in the order of trying.
    """

    batch_size: int
    limit_mib: int | None
    peak_mib: float | None
    tried: tuple[tuple[int, bool], ...]


@dataclass(frozen=True)
class Attempt:
    """What became of a child: the peak of its memory in bytes, or what it says against the size; neither if it died."""

    peak_bytes: int | None = None
    refusal: str | None = None


def largest_batch(task: Task, profile: ProfileParams, device_type: str) -> LargestBatch:
    """Searches for the largest batch, up to 65,536 images, whose training steps fit in memory.

    Goes by doubling or halving from `train.batch_size`, then by bisection, until what fits and what does not are 12.5 %
    apart, or neighbours among the sizes that are tried: those up to 8, and multiples of 8.

    Args:
        task: the model, how it is trained, and the variant.
        profile: `memory_limit_mib` is the limit on a CPU.
        device_type: `CPU` or `GPU`.

    Raises:
        ProfileError: the variant does not train, for another reason than memory, at a size where none has trained yet.
    """
    limit_mib = None if device_type == "GPU" else profile.memory_limit_mib or _half_of_free_mib()
    peaks: dict[int, int] = {}
    tried: list[tuple[int, bool]] = []

    def fits(batch_size: int) -> bool:
        attempt = try_batch(task, batch_size, limit_mib)
        if attempt.refusal and not peaks:  # later, a refusal is what a batch of this size runs into
            raise ProfileError(f"profile.find_max_batch: {attempt.refusal}")
        if attempt.peak_bytes is not None and (limit_mib is None or attempt.peak_bytes <= limit_mib * MIB):
            peaks[batch_size] = attempt.peak_bytes
        tried.append((batch_size, batch_size in peaks))
        return batch_size in peaks

    largest = search(task.train.batch_size, fits)
    return LargestBatch(largest, limit_mib, peaks[largest] / MIB if largest else None, tuple(tried))


def search(start: int, fits: Callable[[int], bool]) -> int:
    """The largest size that fits, within the tolerance; 0 where 1 does not fit. `fits` is asked once for each size."""
    good, bad = _bracket(start, fits)
    while (middle := _between(good, bad)) is not None:
        good, bad = (middle, bad) if fits(middle) else (good, middle)
    return good


def _bracket(start: int, fits: Callable[[int], bool]) -> tuple[int, int]:
    """A size that fits, 0 for none, and a larger one that does not; `LARGEST` itself twice where it fits."""
    if fits(start):
        good = start
        while good < LARGEST:
            larger = min(_on_grid(2 * good), LARGEST)
            if not fits(larger):
                return good, larger
            good = larger
        return good, good
    bad = start
    while bad > 1:
        smaller = _on_grid(bad // 2)
        if fits(smaller):
            return smaller, bad
        bad = smaller
    return 0, bad


def _between(good: int, bad: int) -> int | None:
    if bad - good <= TOLERANCE * good:
        return None
    next_size = good + 1 if good < GRID else _on_grid(good) + GRID
    middle = max(_on_grid((good + bad) // 2), next_size)
    return middle if middle < bad else None


def _on_grid(size: int) -> int:
    return size if size <= GRID else size // GRID * GRID


def try_batch(task: Task, batch_size: int, limit_mib: int | None) -> Attempt:
    """Trains steps of a batch in a child process, which is ended where it exceeds the limit."""
    ours, theirs = multiprocessing.Pipe()
    info = files.read_json(files.PREPARED / "info.json")
    sized = replace(task, train=task.train.model_copy(update={"batch_size": batch_size}))
    arguments = (theirs, sized, tuple(info["image_shape"]), len(info["classes"]))
    process = start_process(f"batch-{batch_size}", _train, arguments, task.variant.variables)
    theirs.close()  # so that the child's death is seen as the end of the line
    try:
        return _guarded(ours, process.pid, limit_mib)
    except (EOFError, ConnectionError):
        return Attempt()
    finally:
        process.kill()
        process.join()
        ours.close()


def _guarded(line: Connection, pid: int | None, limit_mib: int | None) -> Attempt:
    start_bytes: int = line.recv()
    while not line.poll(POLL_S):
        with suppress(psutil.Error):  # it has died: the end of its line says so
            if limit_mib is not None and _own_bytes(psutil.Process(pid)) - start_bytes > limit_mib * MIB:
                return Attempt()
        memory = psutil.virtual_memory()
        if memory.available < LEAST_FREE * memory.total:
            return Attempt()
    attempt: Attempt = line.recv()
    return attempt


def _train(line: Connection, task: Task, image_shape: tuple[int, int, int], classes: int) -> None:
    """What the child runs: it says what memory it starts with, then what became of the training."""
    import tensorflow as tf  # here: the parent must not import it

    start_bytes = _own_bytes(psutil.Process())
    line.send(start_bytes)
    try:
        _train_steps(task, image_shape, classes)
        line.send(Attempt(peak_bytes=_device_peak_bytes(tf) or _own_peak_bytes() - start_bytes))
    except (tf.errors.ResourceExhaustedError, MemoryError):
        line.send(Attempt())
    except (HalfstepError, tf.errors.OpError) as error:
        line.send(Attempt(refusal=" ".join(str(error).split())[:500]))


def _train_steps(task: Task, image_shape: tuple[int, int, int], classes: int) -> None:
    """Steps as `train` runs them, on one random image over and over, which takes no memory until it is batched."""
    import numpy as np
    import tensorflow as tf

    from stages import dataset, recipe

    batch_size, draw = task.train.batch_size, np.random.default_rng(task.seed)
    model = recipe.compiled_model(
        task.model,
        task.train,
        task.variant,
        input_shape=image_shape,
        classes=classes,
        steps_per_epoch=STEPS,
        seed=task.seed,
    )
    image = draw.integers(0, 256, (1, *image_shape), np.uint8)
    labels = draw.integers(0, classes, batch_size, np.int32)
    split = dataset.Split(np.broadcast_to(image, (batch_size, *image_shape)), labels)
    batches = iter(dataset.training_batches(split, task.train, task.seed, steps=STEPS))
    model.make_train_function()
    for _ in range(STEPS):
        model.train_function(batches)
    tf.test.experimental.sync_devices()


def _device_peak_bytes(tf: Any) -> int | None:
    if not tf.config.list_logical_devices("GPU"):
        return None
    return int(tf.config.experimental.get_memory_info("GPU:0")["peak"])


def _own_peak_bytes() -> int:
    """Most memory that this process has had to itself.

    The system keeps the peak of all its memory. The part that it shares, which is the code that it has read so far,
    only grows: what is shared now is at least what was shared then.
    """
    process = psutil.Process()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return max(peak - getattr(process.memory_info(), "shared", 0), _own_bytes(process))


def _own_bytes(process: psutil.Process) -> int:
    memory = process.memory_info()
    return memory.rss - getattr(memory, "shared", 0)


@cache  # once, so that all variants have the same limit
def _half_of_free_mib() -> int:
    free_bytes = psutil.virtual_memory().available
    with suppress(OSError, ValueError):  # no control group, or one without a limit ("max")
        group = Path("/sys/fs/cgroup")
        used_bytes = int((group / "memory.stat").read_text(encoding="utf-8").split()[1])  # its first line is `anon n`
        free_bytes = min(free_bytes, int((group / "memory.max").read_text(encoding="utf-8")) - used_bytes)
    return max(free_bytes // 2 // MIB, 1)
