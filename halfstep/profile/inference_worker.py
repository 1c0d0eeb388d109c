"""What every process that measures an arm does: it answers calls, and times predictions. Does not import TensorFlow."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from halfstep.profile.warm_up import warm_up_length

CALIBRATION_MS = 60.0
MIN_CALIBRATION_CALLS, MAX_CALIBRATION_CALLS = 4, 64
SIGNAL_TIMEOUT_S = 0.5


def answer_calls(
    connection: Connection, make_worker: Callable[[], InferenceWorker], described: Callable[[Exception], str]
) -> None:
    """Receives `(method, arguments)` and sends the result, or the message of an error, until the connection closes.

    Args:
        connection: to the parent.
        make_worker: is called with the first call, so that its errors are answers, too.
        described: the message of an error.
    """
    worker: InferenceWorker | None = None
    while True:
        try:
            method, arguments = connection.recv()
        except (EOFError, ConnectionError):
            return
        try:
            worker = worker or make_worker()
            answer = getattr(worker, method)(*arguments)
        except Exception as error:  # of TensorFlow, of a runtime, or of the user's own code
            answer = described(error)
        with suppress(ConnectionError):  # the parent has ended, or needs no more results
            connection.send(answer)


class InferenceWorker:
    """Times predictions, each from inputs on the host to outputs on the host."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()
        self._times_continued = 0
        signal.signal(signal.SIGCONT, self._count_continued)

    def _prediction_of(self, batch_size: int) -> Callable[[], Any]:
        """What predicts a batch of this size."""
        raise NotImplementedError

    def prepare_inference(self, batch_sizes: Sequence[int]) -> None:
        """Compiles the prediction at each batch size."""
        for batch_size in batch_sizes:
            self.infer(batch_size, 2)

    def infer(self, batch_size: int, calls: int) -> list[float]:
        """Milliseconds of a prediction, `calls` times."""
        call = self._prediction_of(batch_size)
        return [self._timed(call) for _ in range(calls)]

    def _calibrated_latencies(self, batch_sizes: Sequence[int]) -> tuple[dict[int, float], dict[int, int]]:
        """By batch size, milliseconds of a steady call, and the number of calls before it."""
        latency_ms, cold_calls = {}, {}
        for size in batch_sizes:
            first_ms = self.infer(size, 1)[0]
            calls = max(MIN_CALIBRATION_CALLS, int(CALIBRATION_MS / first_ms))
            times_ms = np.array(self.infer(size, min(calls, MAX_CALIBRATION_CALLS)))
            cold_calls[size] = warm_up_length(times_ms)
            latency_ms[size] = float(np.median(times_ms[cold_calls[size] :]))
        return latency_ms, cold_calls

    def began_s(self) -> float:
        """When this process began, by the monotonic clock, which all processes share."""
        return self._began_s

    def times_continued(self, least: int = 0) -> int:
        """How often this process has been continued after it was stopped, as by Ctrl-Z and `fg`.

        Waits a little until it is at least `least`: a signal may arrive after a call that was sent later.
        """
        until_s = time.monotonic() + SIGNAL_TIMEOUT_S
        while self._times_continued < least and time.monotonic() < until_s:
            time.sleep(1e-4)
        return self._times_continued

    def _count_continued(self, *_: object) -> None:
        self._times_continued += 1

    def _timed(self, work: Callable[[], Any]) -> float:
        started_s = time.perf_counter()
        work()
        return (time.perf_counter() - started_s) * 1e3
