"""Ctrl-C and SIGTERM during a training: asked for at any time, obeyed at the next step, and at the latest in 10 s."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

SIGNALS = (signal.SIGTERM, signal.SIGINT)
GRACE_S = 7.0  # for the step that is under way, the checkpoint, and the run's end
LAST_WORDS_S = 2.0  # for the run's end alone, where all that has not come to an end


class Stop:
    """Whether a signal has asked the training to end."""

    def __init__(self) -> None:
        self.last_words: Callable[[], object] = lambda: None
        self._requested: signal.Signals | None = None
        self._ended = threading.Event()

    @property
    def requested(self) -> bool:
        """Whether to end at the next step's boundary."""
        return self._requested is not None

    def obey(self) -> NoReturn:
        """Unwinds the stack, as the signal would have done at once outside of `deferred`."""
        if self._requested == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + int(self._requested or signal.SIGTERM))

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Within the block a signal only sets `requested`: a step is never cut in two."""
        before = {number: signal.getsignal(number) for number in SIGNALS}
        for number, handler in before.items():
            if handler is not signal.SIG_IGN:  # as in the background of a script
                signal.signal(number, self._request)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def bounded(self) -> Iterator[None]:
        """Within the block a signal ends the process at the latest after `GRACE_S + LAST_WORDS_S` seconds.

        Python's own handlers wait for the call that is under way: a step may take a minute, a server may not answer.
        """
        woken, waker = socket.socketpair()
        waker.setblocking(False)
        before = signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
        threading.Thread(target=self._wait_for_a_signal, args=(woken,), daemon=True, name="stop").start()
        try:
            yield
        finally:
            self._ended.set()
            signal.set_wakeup_fd(before)
            waker.close()

    def _request(self, number: int, frame: FrameType | None) -> None:
        self._requested = signal.Signals(number)

    def _wait_for_a_signal(self, woken: socket.socket) -> None:
        with woken:
            while received := woken.recv(1):
                if received[0] in SIGNALS and not self._ended.wait(GRACE_S):
                    self._give_up(received[0])

    def _give_up(self, number: int) -> NoReturn:
        saying = threading.Thread(target=self.last_words, daemon=True)
        saying.start()
        saying.join(LAST_WORDS_S)
        os._exit(128 + number)
