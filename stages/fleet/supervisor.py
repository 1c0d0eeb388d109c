"""`python -m stages.fleet.supervisor COMMAND...`: runs a command, and ends all its processes when its parent dies.

If only `dvc` is killed, its stage goes on, and so does a training whose Ray worker was killed. This process adopts all
descendants of the command, and reads its standard input: that ends when the parent dies, whatever kills it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence

import psutil

from stages.supervision import die_with_parent

GRACE_S = 15.0  # a training saves a checkpoint and ends its run within 10 s
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


def main(command: Sequence[str]) -> int:
    """Runs the command to its end, or until standard input or SIGTERM ends it. No descendant is left afterwards.

    Returns:
        The exit status of the command; 128 + the signal if a signal ended it.
    """
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(_end_all(128 + signal.SIGTERM)))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in the shell of `ray start --block` reaches all processes
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=_die_with_parent)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    status = child.wait()
    return _end_all(128 - status if status < 0 else status)


def _die_with_parent() -> None:
    """In the child: SIGTERM if this process is killed, which cannot end its descendants then."""
    die_with_parent(signal.SIGTERM)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _end_with_parent() -> None:
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)  # handled by the main thread


def _end_all(status: int) -> int:
    """Ends all descendants: SIGTERM, and after `GRACE_S` seconds SIGKILL. Returns `status`."""
    waiting = psutil.Process().children(recursive=True)
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in waiting:
            _send(process, number)
        psutil.wait_procs(waiting, timeout=GRACE_S)
        waiting = [process for process in psutil.Process().children(recursive=True) if process.is_running()]
    return status


def _send(process: psutil.Process, number: int) -> None:
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        return


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
