"""Ctrl-C, SIGTERM and a closed terminal during a training: it ends at the next step, after at most 10 seconds."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from halfstep.system import supervision

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
GRACE_S = 7.0  # for the current step, the checkpoint, and the end of the MLflow run
TIMEOUT_CALLBACK_S = 2.0  # for `on_timeout`


class Interruption:
    """Whether a signal has requested the end of the training.

    Attributes:
        on_timeout: called before the process is ended because the training did not end by itself.
    """

    def __init__(self) -> None:
        self.on_timeout: Callable[[], object] = lambda: None
        self._signal: signal.Signals | None = None
        self._ended = threading.Event()

    @property
    def requested(self) -> bool:
        """Whether to end before the next step."""
        return self._signal is not None

    def raise_for_signal(self) -> NoReturn:
        """Raises the exception that the signal raises outside of `deferred`: `KeyboardInterrupt` or `SystemExit`."""
        if self._signal == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + int(self._signal or signal.SIGTERM))

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """In the block a signal only sets `requested`, so that it never interrupts a step or a checkpoint."""
        previous = {number: signal.getsignal(number) for number in SIGNALS}
        for number, handler in previous.items():
            if handler is not signal.SIG_IGN:  # as in a background job of a shell script
                signal.signal(number, self._request)
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    @contextmanager
    def time_limit(self) -> Iterator[None]:
        """In the block a signal ends the process after at most `GRACE_S + TIMEOUT_CALLBACK_S` seconds.

        Another thread waits for the signal, because a Python handler runs only after the current call into C code: a
        step may take a minute, and a server may not respond.
        """
        receiver, sender = socket.socketpair()
        sender.setblocking(False)
        previous = signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
        threading.Thread(target=self._watch, args=(receiver,), daemon=True, name="interruption").start()
        try:
            yield
        finally:
            self._ended.set()
            signal.set_wakeup_fd(previous)
            sender.close()

    def _request(self, number: int, frame: FrameType | None) -> None:
        self._signal = signal.Signals(number)

    def _watch(self, receiver: socket.socket) -> None:
        with receiver:
            while received := receiver.recv(1):
                if received[0] in SIGNALS and not self._ended.wait(GRACE_S):
                    self._exit(received[0])

    def _exit(self, number: int) -> NoReturn:
        callback = threading.Thread(target=self.on_timeout, daemon=True)
        callback.start()
        callback.join(TIMEOUT_CALLBACK_S)
        supervision.ended()
        os._exit(128 + number)
