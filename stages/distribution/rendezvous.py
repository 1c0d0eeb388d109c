"""All ranks of a training meet before TensorFlow connects them. Does not import TensorFlow.

While TensorFlow waits for a rank, for up to an hour, no other thread of Python runs, and nobody says who is missing.
"""

from __future__ import annotations

import os
import socket
import socketserver
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from stages.distribution.cluster import Cluster
from stages.errors import LostRankError, ParameterError, one_line

TIMEOUT_VARIABLE = "HALFSTEP_RANKS_TIMEOUT_S"
TIMEOUT_S = 300.0  # a queue may start ranks minutes apart
_CONNECT_S = 1.0
_POLL_S = 0.2
_WELCOME = b"halfstep\n"


def meet(cluster: Cluster) -> None:
    """Returns when all ranks have started. The port of this rank is free again then.

    Raises:
        LostRankError: a rank has not started within `HALFSTEP_RANKS_TIMEOUT_S`.
        ParameterError: this rank's port cannot be used, or the variable is no number.
    """
    limit_s, others = timeout_s(), set(range(cluster.hosts)) - {cluster.rank}
    end_s, greeted = time.monotonic() + limit_s, set[int]()
    with _listening(cluster) as arrived, ThreadPoolExecutor(len(others)) as executor:
        while missing := others - (greeted & arrived):
            if time.monotonic() > end_s:
                raise LostRankError(
                    f"train: {named(cluster, missing)} did not start within {limit_s:g} s; start the same command on "
                    f"each host, or raise {TIMEOUT_VARIABLE}"
                )
            waiting = sorted(others - greeted)
            answers = executor.map(lambda rank: _greets(cluster.addresses[rank], cluster.rank), waiting)
            greeted |= {rank for rank, has_answered in zip(waiting, answers, strict=True) if has_answered}
            time.sleep(_POLL_S)


def timeout_s() -> float:
    """Seconds in which all ranks must have started.

    Raises:
        ParameterError: `HALFSTEP_RANKS_TIMEOUT_S` is no positive number.
    """
    text = os.environ.get(TIMEOUT_VARIABLE, str(TIMEOUT_S))
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found < 1e6:
        raise ParameterError(f"{TIMEOUT_VARIABLE} is {one_line(text, 80)!r}; it must be a number of seconds above 0")
    return found


def silent_ranks(cluster: Cluster) -> list[int]:
    """The other ranks at whose address no process listens."""
    others = [rank for rank in range(cluster.hosts) if rank != cluster.rank]
    with ThreadPoolExecutor(len(others)) as executor:
        answers = executor.map(_answers, [cluster.addresses[rank] for rank in others])
        return [rank for rank, has_answered in zip(others, answers, strict=True) if not has_answered]


def named(cluster: Cluster, ranks: Iterable[int]) -> str:
    """Ranks with their addresses, for messages."""
    return ", ".join(f"rank {rank} ({cluster.addresses[rank]})" for rank in sorted(ranks))


def _place(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _answers(address: str) -> bool:
    try:
        with socket.create_connection(_place(address), timeout=_CONNECT_S):
            return True
    except OSError:
        return False


def _greets(address: str, rank: int) -> bool:
    """Tells another rank that this one has started; whether it is there to learn it."""
    try:
        with socket.create_connection(_place(address), timeout=_CONNECT_S) as connection:
            connection.sendall(b"%d\n" % rank)
            return connection.makefile("rb").read(len(_WELCOME)) == _WELCOME
    except OSError:
        return False


@contextmanager
def _listening(cluster: Cluster) -> Iterator[set[int]]:
    """Yields the ranks that have greeted this one, a set that grows in the block."""
    arrived: set[int] = set()

    class Handler(socketserver.StreamRequestHandler):
        timeout = _CONNECT_S

        def handle(self) -> None:
            line = self.rfile.readline(20).strip()
            if line.isdigit():
                self.wfile.write(_WELCOME)  # first: once all have arrived, nobody listens any more
                arrived.add(int(line))

    class Server(socketserver.ThreadingTCPServer):
        allow_reuse_address = True

        def handle_error(self, request: object, client_address: object) -> None:
            """Says nothing: another program has connected, or a rank has ended."""

    address = cluster.addresses[cluster.rank]
    try:
        server = Server(("", _place(address)[1]), Handler)  # as TensorFlow, on all interfaces
    except OSError as error:
        raise ParameterError(
            f"{cluster.source}: the port of rank {cluster.rank} ({address}) cannot be used on this host "
            f"({error.strerror}); choose a free port above 1023, the same in the lists of all hosts"
        ) from error
    with server:
        threading.Thread(target=server.serve_forever, args=(_POLL_S,), daemon=True, name="rendezvous").start()
        try:
            yield arrived
        finally:
            server.shutdown()
