"""How many arms fit into the memory of the GPU at once. Does not import TensorFlow, and creates no CUDA context.

TensorFlow takes memory as it needs it and gives none back before the process ends. So what an arm keeps is the memory
that is free before its process starts, minus the one after its warm-up: weights, activations, the scratch memory of
cuDNN's autotuner, and the CUDA context.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from stages.errors import ProfileError
from stages.gpus import Visible, nvml

# Memory that stays free, as a share of what the arms keep: for the profiler, a batch that stays on the device, and the
# baseline's weights in each precision. With too little, the autotuner takes slower algorithms without a message. An
# assumption: it has not been measured on a GPU.
RESERVE = 0.2
MIB = 2**20


@dataclass(frozen=True)
class DeviceMemory:
    """Memory of the GPU in bytes, of all programs together."""

    total_bytes: int
    free_bytes: int


@dataclass(frozen=True)
class OutOfMemory:
    """A worker's answer to a call for which there was too little memory.

    Attributes:
        batch_size: `train.batch_size`.
        peak_bytes: most that the worker has used so far, as in `memory/peak_mib`.
        details: what TensorFlow says, in one line.
    """

    batch_size: int
    peak_bytes: int
    details: str


class OutOfMemoryError(ProfileError):
    """The worker of an arm had too little memory."""

    def __init__(self, arm: str, shortage: OutOfMemory) -> None:
        size = f"train.batch_size is {shortage.batch_size}, too large for the memory; reduce it"
        super().__init__(f"profile: {arm}: {size}")
        self.arm, self.shortage = arm, shortage


class DoesNotFitError(ProfileError):
    """An arm did not start beside others, or ran out of memory beside them. Alone it may fit."""


ReadMemory = Callable[[], DeviceMemory | None]


def device_memory_reader(found: Visible) -> ReadMemory:
    """Returns what reads the memory of the first of the visible GPUs, TensorFlow's `GPU:0`, as NVML reports it.

    It returns None without a GPU, and if it is not known which of several GPUs it is.
    """
    return functools.partial(_memory_of, found.gpus[0].uuid if found.gpus and found.identified else None)


def _memory_of(uuid: str | None) -> DeviceMemory | None:
    """Memory of a GPU, or of a slice of one."""
    with nvml() as library:
        if library is None or not uuid:
            return None
        try:
            memory = library.nvmlDeviceGetMemoryInfo(library.nvmlDeviceGetHandleByUUID(uuid))
        except library.NVMLError:
            return None
        return DeviceMemory(int(memory.total), int(memory.free))


class Room:
    """What each arm keeps of the memory of the GPU, and whether several fit at once.

    Where the memory is unknown, they fit until a worker runs out of it.

    Args:
        read_memory: the memory of the GPU; None without one.

    Attributes:
        is_on_gpu: whether there is a GPU whose memory is known.
        kept_bytes: by arm, at its first start.
    """

    def __init__(self, read_memory: ReadMemory) -> None:
        self._read_memory = read_memory
        self.is_on_gpu = read_memory() is not None
        self.kept_bytes: dict[str, int] = {}
        self._before_one: DeviceMemory | None = None  # before the start of the last arm that had no others beside it

    @contextmanager
    def starting(self, name: str, others: Sequence[str]) -> Iterator[None]:
        """An arm starts in the block, while the other ones live. Measures what it keeps.

        There must be a reserve at its first start. Later ones use it, so that a few MiB less do not end a measurement.

        Raises:
            DoesNotFitError: there is no room for it, or it did not start beside the others.
            ProfileError: it did not start although no other one lives.
        """
        before, reserve = self._read_memory(), RESERVE if name not in self.kept_bytes else 0.0
        if others and before is not None:
            self._check([*others, name], before.free_bytes + self._kept(others), reserve)
        if not others:
            self._before_one = before
        try:
            yield
        except ProfileError as error:
            if others:
                reason = str(error).removeprefix("profile: ")
                raise DoesNotFitError(f"{name} did not start beside {', '.join(others)} ({reason})") from error
            if isinstance(error, OutOfMemoryError):
                raise self.explained(error, ()) from error
            raise
        after = self._read_memory()
        if before is not None and after is not None:
            self.kept_bytes.setdefault(name, max(0, before.free_bytes - after.free_bytes))
            if others:
                self._check([*others, name], after.free_bytes + self._kept([*others, name]), reserve)

    def explained(self, error: OutOfMemoryError, others: Sequence[str]) -> ProfileError:
        """The error of an arm that ran out of memory while the other ones lived: alone it may fit, or it does not."""
        if others:
            details = error.shortage.details
            return DoesNotFitError(f"{error.arm} ran out of memory beside {', '.join(others)} ({details})")
        if self._before_one is None:
            return error
        return ProfileError(_shortage_of_one(error.arm, error.shortage, self._before_one))

    def fit(self, blocks: Iterable[Sequence[str]]) -> bool:
        """Whether the arms of each block fit at once; no arm may live."""
        memory = self._read_memory()
        return memory is None or all((1 + RESERVE) * self._kept(names) <= memory.free_bytes for names in blocks)

    def _kept(self, names: Sequence[str]) -> int:
        """What these arms keep; an arm that was never ready as much as the one that keeps the most."""
        most = max(self.kept_bytes.values(), default=0)
        return sum(self.kept_bytes.get(name, most) for name in names)

    def _check(self, names: Sequence[str], free_bytes: int, reserve: float) -> None:
        """Raises DoesNotFitError unless these arms fit into what is free without them."""
        kept_bytes = self._kept(names)
        if (1 + reserve) * kept_bytes > free_bytes:
            raise DoesNotFitError(
                f"{', '.join(names)} do not fit on the GPU at once: they keep about {mib(kept_bytes)} and need a "
                f"reserve of {reserve:.0%}, and other programs leave {mib(free_bytes)}"
            )


def _shortage_of_one(name: str, shortage: OutOfMemory, before: DeviceMemory) -> str:
    """One line for an arm that does not fit although no other arm lives; `before` is the memory at its start."""
    other_bytes = before.total_bytes - before.free_bytes
    return (
        f"profile: {name} does not fit on the GPU: it used {mib(shortage.peak_bytes)} when TensorFlow could not get "
        f"more ({shortage.details}); the GPU has {mib(before.total_bytes)}, of which other programs use "
        f"{mib(other_bytes)}; lower train.batch_size ({shortage.batch_size}) or the largest of "
        f"profile.inference_batch_sizes, stop other programs, or leave the variant out of train.variants"
    )


def mib(size_bytes: int) -> str:
    """A size in words, such as `1,024 MiB`."""
    return f"{size_bytes / MIB:,.0f} MiB"
