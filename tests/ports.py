"""Ports for the servers that tests start."""

from __future__ import annotations

import random
import socket

# Below those that the kernel gives to anyone who asks for port 0 (from 32768 on Linux), as Ray's processes do while
# other tests run, and above those of Ray's workers (10002 to 19999): a port that is free stays free until it is used.
_PORTS = range(20_000, 32_000)


def free_port() -> int:
    """A port of this machine that nobody listens at."""
    while True:
        port = random.SystemRandom().choice(_PORTS)  # the seed of tests is the same in all their processes
        with socket.socket() as candidate:
            try:
                candidate.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
