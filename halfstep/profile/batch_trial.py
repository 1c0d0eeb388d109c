"""The process that tries one batch size, and may run out of memory. Imports TensorFlow."""

from __future__ import annotations

import os
import resource
import sys
import time
from multiprocessing.connection import Connection

from halfstep.errors import HalfstepError
from halfstep.machine.process_memory import rss_and_shared_bytes
from halfstep.profile import peak_memory
from halfstep.results.profile import BatchTried
from halfstep.tasks import building
from halfstep.tasks.fit_call import inside
from halfstep.tasks.trial import Trial
from halfstep.tensorflow_import import tf
from halfstep.words.text import MIB

STEPS = 2  # the first needs memory to compile; the second runs with what the first has left allocated
TIMED_S = 0.3  # after these


def serve(connection: Connection, trial: Trial, batch_size: int) -> None:
    """What the process runs: sends the memory that it starts with, then the outcome of the training."""
    start_bytes = _own_bytes()
    connection.send(start_bytes)
    inside(trial, lambda: connection.send(_answer(trial, batch_size, start_bytes)))


def _answer(trial: Trial, batch_size: int, start_bytes: int) -> BatchTried | str:
    try:
        per_s = _train_steps(trial, batch_size)
        on_gpu = tf.config.list_logical_devices("GPU")
        peak_bytes = peak_memory.peak_bytes() if on_gpu else _own_peak_bytes() - start_bytes
        return BatchTried(batch_size=batch_size, peak_mib=peak_bytes / MIB, examples_per_s=per_s)
    except (tf.errors.ResourceExhaustedError, MemoryError):
        return BatchTried(batch_size=batch_size)
    except (HalfstepError, tf.errors.OpError) as error:
        return " ".join(str(error).split())[:500]


def _train_steps(trial: Trial, batch_size: int) -> float:
    """Runs steps as `train` does, and returns examples per second."""
    task = building.ready(trial, trial_batch=batch_size)
    batches = iter(task.training.equal_batches())
    task.model.make_train_function()
    for _ in range(STEPS):
        task.model.train_function(batches)
    tf.test.experimental.sync_devices()
    steps, began_s = 0, time.monotonic()
    while time.monotonic() - began_s < TIMED_S:
        task.model.train_function(batches)
        tf.test.experimental.sync_devices()
        steps += 1
    return steps * batch_size / (time.monotonic() - began_s)


def _own_bytes() -> int:
    """Unshared memory of this process."""
    rss, shared = rss_and_shared_bytes(os.getpid())
    return rss - shared


def _own_peak_bytes() -> int:
    """Peak of the unshared memory of this process.

    The system records the peak of all memory. The shared part is the loaded code, which only grows: it is now at least
    as large as it was at the peak.
    """
    rss, shared = rss_and_shared_bytes(os.getpid())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return max(peak, rss) - shared
