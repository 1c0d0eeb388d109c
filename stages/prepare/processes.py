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
from multiprocessing import connection
from pathlib import Path

from stages.errors import DataError
from stages.prepare.decoding import ImageForm, Images, decode_file

MOST_WORKERS = 16

Decoded = list[Images | str]  # an image, or the reason why it cannot be used
Decode = Callable[[Sequence[Path]], Decoded]


def available_workers() -> int:
    """Number of decoding processes: one for each core that this process may use. Each needs about 60 MB of memory."""
    from stages import cgroups, fingerprint  # not needed by the decoding processes, which import this module

    quota_cores = cgroups.cpu_quota_cores() or MOST_WORKERS
    return min(fingerprint.usable_cores(), math.ceil(quota_cores), MOST_WORKERS)


def decode_files(paths: Sequence[Path], form: ImageForm) -> Decoded:
    """Decodes files in this process."""
    return [decode_file(path, form) for path in paths]


def decode_in_processes(decode: Decode, groups: Iterator[list[Path]], workers: int) -> Iterator[Decoded]:
    """Maps `decode` over `groups` in order. At most two groups per process are pending, so memory use is bounded.

    Raises:
        DataError: a process died, for example because memory ran out.
    """
    context = multiprocessing.get_context("spawn")  # a fork would inherit locks that other threads hold
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker) as pool:
        pending: deque[tuple[list[Path], Future[Decoded]]] = deque()
        try:
            for group in itertools.chain(groups, itertools.repeat(None, 2 * workers)):
                if group is not None:
                    pending.append((group, pool.submit(decode, group)))
                if pending and (group is None or len(pending) >= 2 * workers):
                    yield _result(*pending.popleft())
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


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
