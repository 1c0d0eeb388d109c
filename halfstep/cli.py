"""What every program of the project does at its entry and its end: messages, signals, exit status, threads."""

from __future__ import annotations

import codecs
import errno
import functools
import io
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from halfstep.errors import DISK_FULL, NO_SPACE, REFUSALS, HalfstepError, is_disk_full, one_line
from halfstep.system import rerun, supervision, telling

THREADS_S = 5.0  # for threads that end by themselves
_ONE_CTRL_C_S = 0.5  # in which several signals are one Ctrl-C
_interrupted_s = -math.inf
_IN_ASCII = {"−": "-", "–": "-", "×": "x", "…": "...", "±": "+-", "≥": ">=", "≤": "<=", "→": "->", "·": "."}
_BY_SIGNAL = {128 + number: number for number in (signal.SIGTERM, signal.SIGHUP)}  # exit statuses
_RESEND_S = 0.01  # the destructor has returned by then


def cli_entry(main: Callable[[], None]) -> Callable[[], int]:
    """Wraps the entry point of a stage: an error that the user caused becomes one line on standard error.

    Returns:
        A function that returns 0, the `exit_status` of the `HalfstepError` that ended `main`, 1 if the operating
        system refused to read or write, or 130 after Ctrl-C. Any other exception is a bug and keeps its traceback.
    """

    @functools.wraps(main)
    def entry() -> int:
        # SIGTERM unwinds the stack as Ctrl-C does, so that MLflow runs are ended and temporary files are removed. So
        # does the end of a terminal, unless `nohup` ignores it.
        signal.signal(signal.SIGTERM, _exit)
        if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
            signal.signal(signal.SIGHUP, _exit)
        if callable(signal.getsignal(signal.SIGINT)):  # it is ignored in a background job of a shell script
            signal.signal(signal.SIGINT, _interrupt)
        _print_in_any_encoding()
        _print_whoever_reads()
        try:
            with _no_signal_is_lost():
                main()
            sys.stdout.flush()
        except HalfstepError as error:
            _report(*error.args)
            return error.exit_status
        except OSError as error:
            if error.errno not in REFUSALS:
                raise
            _report(_os_error_message(error))
            return HalfstepError.exit_status
        except Exception as error:
            if not is_disk_full(error):
                raise
            _report(NO_SPACE)
            return HalfstepError.exit_status
        except KeyboardInterrupt:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # another Ctrl-C must not interrupt the end of threads
            print("interrupted", file=sys.stderr)
            return 128 + signal.SIGINT
        return 0

    return entry


@contextmanager
def _no_signal_is_lost() -> Iterator[None]:
    """In the block, a signal is sent again whose exception Python has ignored: in a destructor, for example."""
    previous = sys.unraisablehook

    def send_again(ignored: Any) -> None:
        global _interrupted_s
        if issubclass(ignored.exc_type, KeyboardInterrupt):
            number, _interrupted_s = signal.SIGINT, -math.inf
        elif issubclass(ignored.exc_type, SystemExit) and ignored.exc_value.code in _BY_SIGNAL:
            number = _BY_SIGNAL[ignored.exc_value.code]
        else:
            previous(ignored)
            return
        threading.Timer(_RESEND_S, os.kill, (os.getpid(), number)).start()

    sys.unraisablehook = send_again
    try:
        yield
    finally:
        sys.unraisablehook = previous


def _report(*lines: object) -> None:
    text = rerun.in_its_words("\n".join(one_line(str(line)) for line in lines))
    print(f"{text}{_restore_hint()}", file=sys.stderr)


def _os_error_message(error: OSError) -> str:
    path = f"{error.filename}: " if error.filename else ""
    advice = "free some disk space" if error.errno in DISK_FULL else "check the path and its permissions"
    return f"{path}{error.strerror}; {advice}, then run `dvc repro` again"


def _restore_hint() -> str:
    """How to restore the result that DVC removed when it started the stage; empty outside DVC or without one."""
    stage, lock = os.environ.get("DVC_STAGE", ""), Path("dvc.lock")
    if stage in ("", "environment") or not lock.is_file():
        return ""
    if f"\n  {stage}:\n" not in lock.read_text(encoding="utf-8"):
        return ""
    return f"; `dvc checkout {stage}` restores the previous result"


@contextmanager
def ended_by_ctrl_c() -> Iterator[None]:
    """In the block, Ctrl-C ends the process at once: for a slow import, in which an exception may be lost."""
    stderr, previous = os.dup(2), signal.getsignal(signal.SIGINT)  # an import may redirect standard error

    def end(*_: object) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        os.write(stderr, b"interrupted\n")
        os._exit(128 + signal.SIGINT)

    if callable(previous):
        signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
        os.close(stderr)


def _exit(number: int, _: object) -> NoReturn:
    sys.exit(128 + number)


def _interrupt(*_: object) -> None:
    """Raises an exception for Ctrl-C, once: the process above forwards the signal that the terminal sends to both."""
    global _interrupted_s
    if time.monotonic() - _interrupted_s > _ONE_CTRL_C_S:
        _interrupted_s = time.monotonic()
        raise KeyboardInterrupt


class _Output:
    """A standard stream that may be closed, or full: what cannot be written is dropped, and the stage goes on."""

    def __init__(self, stream: io.TextIOWrapper, name: str) -> None:
        self._stream, self._name = stream, name

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Writes, if that is possible, in place of the line that is rewritten."""
        try:
            return self._stream.write(telling.cleared() + text)
        except OSError as error:
            self._drop_the_rest(error)
            return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Writes each line."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Flushes, if that is possible."""
        try:
            self._stream.flush()
        except OSError as error:
            self._drop_the_rest(error)

    def _drop_the_rest(self, error: OSError) -> None:
        """Sends the stream to nowhere, for libraries in C and for child processes, too."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)
        if error.errno != errno.EPIPE and self._name == "standard output":
            print(f"{self._name} cannot be written ({error.strerror}); the stage goes on without it", file=sys.stderr)


def _print_whoever_reads() -> None:
    for attribute, name in (("stdout", "standard output"), ("stderr", "standard error")):
        stream = getattr(sys, attribute)
        if stream is None:  # it was closed before Python started
            setattr(sys, attribute, io.TextIOWrapper(io.FileIO(os.devnull, "w"), encoding="utf-8"))
        elif type(stream) is io.TextIOWrapper:  # not what a test captures
            setattr(sys, attribute, _Output(stream, name))


def _print_in_any_encoding() -> None:
    """Replaces characters that the encoding of the terminal or the file does not have, instead of failing."""
    codecs.register_error("halfstep", _replaced)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="halfstep")


def _replaced(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    characters = error.object[error.start : error.end]
    return "".join(_IN_ASCII.get(one) or ascii(one)[1:-1] for one in characters), error.end


def run(main: Callable[[], int]) -> int:
    """Runs a program, and makes sure that its process ends, also if the user's own code has started threads.

    Everything is written when `main` ends. Python then waits for all threads that are not daemons.

    Args:
        main: what `cli_entry` returned.

    Returns:
        The exit status.
    """
    status = 1
    try:
        status = main()
    except SystemExit as error:  # after SIGTERM
        status = error.code if isinstance(error.code, int) else 1
    finally:
        supervision.ended()
        threading.Thread(target=_end_without_threads, args=(status,), daemon=True).start()
    return status


def _end_without_threads(status: int) -> None:
    time.sleep(THREADS_S)
    others = [thread for thread in threading.enumerate() if thread is not threading.main_thread()]
    if names := [repr(thread.name) for thread in others if not thread.daemon]:
        print(
            f"{supervision.stage_name()}: does not wait for threads that your code started: {', '.join(names)}",
            file=sys.stderr,
        )
        _end_now(status)


def _end_now(status: int) -> NoReturn:
    supervision.ended()
    sys.stderr.flush()
    sys.stdout.flush()
    os._exit(status)
