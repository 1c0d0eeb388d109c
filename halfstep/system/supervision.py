"""A small process above each stage: it says what ended the stage where the stage itself cannot.

A crash in a library, a limit of the system, and `os._exit(0)` in the user's code end a process without a word, and the
last even with success. The process that DVC starts therefore forks at once, before it imports anything large. Its child
is the stage. Whatever kills the parent kills the child.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from contextlib import suppress
from typing import NoReturn

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)
_INTERRUPTED = 128 + signal.SIGINT  # was reported, whoever ended the process
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # a terminal sends the first to the child, too
_CAUSES = {
    signal.SIGSEGV: "a library or your own code used memory wrongly, or the stack is too small (`ulimit -s`)",
    signal.SIGABRT: "a library gave up: memory may have been refused, check `ulimit -v`",
    signal.SIGBUS: "a file that is mapped to memory was cut, or its disk is full",
    signal.SIGILL: "a library needs instructions that this processor does not have",
    signal.SIGFPE: "an integer was divided by zero in a library",
    signal.SIGALRM: "your own code, or a library, set an alarm",
    signal.SIGXCPU: "it used more processor time than `ulimit -t` allows",
    signal.SIGXFSZ: "a file became larger than `ulimit -f` allows",
    signal.SIGKILL: "the system may have lacked memory; or somebody ended it",
}
_ENDED = b"e"  # what a stage tells its parent
_end: int | None = None  # of a pipe to the parent


def supervise(name: str) -> None:
    """Forks where `name` is `__main__`, and returns in the child. The parent waits, and exits as the child does.

    It ends with DVC, too, whose child it is: `exec` in dvc.yaml leaves out the shell.
    """
    global _end
    if name != "__main__":
        return
    if "DVC_STAGE" in os.environ:  # what the user started by hand may outlive its shell
        die_with_parent(signal.SIGTERM)
    _open_standard_streams()
    reading, writing = os.pipe()
    parent = os.getpid()
    if child := os.fork():
        os.close(writing)
        _wait(child, reading)
    os.close(reading)
    _end = writing
    die_with_parent(signal.SIGKILL)
    if os.getppid() != parent:  # it was killed before
        os._exit(1)


def _open_standard_streams() -> None:
    """Where a shell has closed one (`>&-`), the next file would take its number, and all that is printed."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free


def die_with_parent(number: signal.Signals) -> None:
    """In a child: the kernel sends it this signal when its parent dies, whatever kills the parent."""
    _libc.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)


def stage_name() -> str:
    """Name of the stage that this process was started as, for messages."""
    folder, file = os.path.split(sys.argv[0])  # to import pathlib takes time
    return os.path.basename(folder) if file == "__main__.py" else file.removesuffix(".py")  # noqa: PTH119


def ended() -> None:
    """Tells the parent that the stage has come to its own end, and has reported what went wrong."""
    global _end
    if _end is not None:
        with suppress(OSError):
            os.write(_end, _ENDED)
        os.close(_end)
        _end = None


def _wait(child: int, reading: int) -> NoReturn:
    def forward(number: int, _: object) -> None:
        with suppress(ProcessLookupError):  # it has just ended
            os.kill(child, number)

    for number in _FORWARDED:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, forward)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.set_blocking(reading, False)  # a process that the user's code has left may hold the other end
    told = b""
    with suppress(BlockingIOError):
        told = os.read(reading, 64)
    has_ended = _ENDED in told
    if has_ended and status == -signal.SIGINT:  # Python ends so after a Ctrl-C in a string that `exec` ran
        status = _INTERRUPTED
    if status < 0 or (not has_ended and status != _INTERRUPTED):
        print(f"{stage_name()}: {description_of_end(status)}", file=sys.stderr, flush=True)
    os._exit(128 - status if status < 0 else status or int(not has_ended))


def description_of_end(status: int) -> str:
    """What ended a process, in words; a negative status is that of a signal."""
    if status >= 0:
        shown = "an error ended it, which is shown above, or " if status == 1 else ""
        return f"ended with status {status} before its end: {shown}your own code, or a library, calls os._exit"
    try:
        number = signal.Signals(-status)
    except ValueError:
        return f"signal {-status} ended it"
    return f"{number.name} ended it" + (f": {_CAUSES[number]}" if number in _CAUSES else "")
