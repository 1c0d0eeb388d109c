"""Decoding in several processes, in order, and with little in memory. Light to import: each process does."""

from __future__ import annotations

import itertools
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

Decoded = list[Images | str]  # an image, or why there is none
Decode = Callable[[Sequence[Path]], Decoded]


def available_workers() -> int:
    """One process for each core that this one may use, within reason: each takes some 60 MB."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, MOST_WORKERS)


def decode_files(paths: Sequence[Path], form: ImageForm) -> Decoded:
    """Decodes some files, one after the other."""
    return [decode_file(path, form) for path in paths]


def decode_in_processes(decode: Decode, groups: Iterator[list[Path]], workers: int) -> Iterator[Decoded]:
    """Maps `decode` over `groups` in order, with so few of them under way that memory does not grow with their number.

    Raises:
        DataError: a process died, as happens where memory runs out.
    """
    context = multiprocessing.get_context("spawn")  # a fork would inherit whatever threads hold at that moment
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
            f"data.path: a decoding process died, perhaps for want of memory, at or soon after {group[0]}; "
            "look at the files from there on, or lower data.max_pixels"
        ) from error


def _start_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then ends the workers
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)  # a killed parent cannot end its workers, which would wait for work for ever
