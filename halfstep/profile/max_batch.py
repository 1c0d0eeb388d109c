"""Finds the largest batch that trains, and how many examples per second it trains, by trying ever larger ones.

Each is tried in a child process of its own, which may run out of memory.

On a CPU, the memory of a child is its peak minus its memory before the model is built. The parent kills the child if it
exceeds the limit or if the machine has hardly any memory left. A limit on the address space (RLIMIT_AS) would not work,
because TensorFlow reserves many times what it uses.
"""

from __future__ import annotations

from contextlib import suppress
from functools import cache

import psutil

from halfstep.errors import ProfileError
from halfstep.machine import free_memory
from halfstep.machine.process_memory import rss_and_shared_bytes
from halfstep.params.schema import ProfileParams
from halfstep.results.profile import BatchTried, LargestBatch
from halfstep.system.child import Child, Lost, serve
from halfstep.tasks.trial import Trial
from halfstep.words.text import MIB

LARGEST = 65_536  # examples: the maximum of train.batch_size
POLL_S = 0.01
_PROGRAM = "halfstep.profile.batch_trial"  # it imports TensorFlow
MIN_FREE = 0.05  # share of the machine's memory


def largest_batch(trial: Trial, profile: ProfileParams, device_type: str) -> LargestBatch:
    """Tries batches of powers of two, upwards until one does not fit in memory or trains at half of the best speed.

    The first is the largest power of two up to `train.batch_size`; if it does not fit, smaller ones are tried. The
    batch itself is tried, too, so that its speed can be compared.

    Args:
        trial: the model, how it is trained, and the variant.
        profile: `memory_limit_mib` is the limit on a CPU.
        device_type: `CPU` or `GPU`.

    Raises:
        ProfileError: the variant fails for another reason than memory, and no size has trained yet.
        DataError: the prepared data are missing.
    """
    limit_mib = None if device_type == "GPU" else profile.memory_limit_mib or _half_of_free_mib()
    start, tried = trial.train.batch_size, list[BatchTried]()

    def fits(batch_size: int) -> bool:
        batch = try_batch(trial, batch_size, limit_mib)
        if isinstance(batch, str) and not any(other.fits for other in tried):  # later, the size is the likely cause
            raise ProfileError(f"profile.find_max_batch: {batch}")
        if isinstance(batch, str) or (limit_mib is not None and (batch.peak_mib or 0.0) > limit_mib):
            batch = BatchTried(batch_size=batch_size)
        tried.append(batch)
        return batch.fits

    def is_slow(batch: BatchTried) -> bool:
        best = max(one.examples_per_s or 0.0 for one in tried)
        return batch.examples_per_s is not None and batch.examples_per_s < best / 2

    size = 1 << (start.bit_length() - 1)
    if fits(size):
        if start != size:
            fits(start)
        while 2 * size <= LARGEST and fits(2 * size) and not is_slow(tried[-1]):
            size *= 2
    else:
        while size > 1 and not fits(size // 2):
            size //= 2
    powers = [batch for batch in tried if batch.fits and batch.batch_size.bit_count() == 1]
    largest = max(powers, key=lambda batch: batch.batch_size, default=None)
    return LargestBatch(
        batch_size=largest.batch_size if largest else 0,
        limit_mib=limit_mib,
        peak_mib=largest.peak_mib if largest else None,
        examples_per_s=largest.examples_per_s if largest else None,
        tried=tuple(tried),
    )


def try_batch(trial: Trial, batch_size: int, limit_mib: int | None) -> BatchTried | str:
    """Trains a few steps in a child process, which is killed if it exceeds the limit; the message if there is an error.

    A batch with which the child dies does not fit.
    """
    with Child(
        f"batch-{batch_size}",
        serve,
        (_PROGRAM, trial, batch_size),
        trial.variant.variables,
        python=trial.variant.python,
        may_have_children=trial.task.script is not None,
    ) as child:
        start_bytes = child.receive(int, str)
        if isinstance(start_bytes, int) and _stays_within(limit_mib, child, start_bytes):
            answer = child.receive(BatchTried, str)
            return BatchTried(batch_size=batch_size) if isinstance(answer, Lost) else answer
        return BatchTried(batch_size=batch_size)


def _stays_within(limit_mib: int | None, child: Child, start_bytes: int) -> bool:
    """Waits for the child's answer; whether it had enough memory until then."""
    while not child.connection.poll(POLL_S):
        with suppress(OSError, psutil.Error):  # the child has died, which `receive` reports
            rss, shared = rss_and_shared_bytes(child.process.pid or 0)
            if limit_mib is not None and rss - shared - start_bytes > limit_mib * MIB:
                return False
        memory = psutil.virtual_memory()
        if memory.available < MIN_FREE * memory.total:
            return False
    return True


@cache  # so that all variants have the same limit
def _half_of_free_mib() -> int:
    return max(free_memory.free_bytes() // 2 // MIB, 1)
