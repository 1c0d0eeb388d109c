"""Decodes images in several processes, in order. The imports are light because each process repeats them."""

from __future__ import annotations

import itertools
import math
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import connection, resource_tracker
from pathlib import Path

from halfstep.errors import DataError
from halfstep.prepare.images.decoding import ImageForm, Images, decode_file

MOST_WORKERS = 16

Decoded = list[Images | str]  # an image, or the reason why it cannot be used
Decode = Callable[[Sequence[Path]], Decoded]


def available_workers() -> int:
    """Number of decoding processes: one for each core that this process may use. Each needs about 60 MB of memory."""
    from halfstep.machine import cgroups, fingerprint  # not needed by the decoding processes, which import this module

    quota_cores = cgroups.cpu_quota_cores() or MOST_WORKERS
    return min(fingerprint.usable_cores(), math.ceil(quota_cores), MOST_WORKERS)


def decode_files(paths: Sequence[Path], form: ImageForm) -> Decoded:
    """Decodes files in this process."""
    return [decode_file(path, form) for path in paths]


def decode_in_processes(decode: Decode, groups: Iterator[list[Path]], workers: int) -> Iterator[Decoded]:
    """Maps `decode` over `groups` in order. At most two groups per process are pending, so memory use is bounded.

    If the iteration ends early, the processes are ended without waiting for the groups that they decode.

    Raises:
        DataError: a process died, for example because memory ran out.
    """
    context = multiprocessing.get_context("spawn")  # a fork would inherit locks that other threads hold
    others = set(multiprocessing.active_children())
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker) as pool:
        pending: deque[tuple[list[Path], Future[Decoded]]] = deque()
        try:
            for group in itertools.chain(groups, itertools.repeat(None, 2 * workers)):
                if group is not None:
                    with _without_ctrl_c():
                        pending.append((group, pool.submit(decode, group)))
                if pending and (group is None or len(pending) >= 2 * workers):
                    yield _result(*pending.popleft())
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            with _without_ctrl_c():
                for process in set(multiprocessing.active_children()) - others:
                    process.terminate()
            raise


@contextmanager
def _without_ctrl_c() -> Iterator[None]:
    """Defers Ctrl-C in this process. A process that is started meanwhile never receives it.

    Until a new process runs `_start_worker`, Ctrl-C would otherwise end it with a traceback.
    """
    resource_tracker.ensure_running()  # started with the first process otherwise, which would end the deferral
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _result(group: list[Path], future: Future[Decoded]) -> Decoded:
    try:
        return future.result()
    except BrokenProcessPool as error:
        raise DataError(
            f"data.path: a decoding process died, possibly out of memory, at or soon after {group[0]}; "
            "check the files from there on, or lower data.max_pixels"
        ) from error


def _start_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and ends the workers
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)  # a killed parent cannot end its workers, which would wait for work forever
