"""Starts `python -m stages.X` and the fork servers from a process that has imported TensorFlow.

    python -IS python.py FOLDER REAL ARGUMENTS...

does what `REAL ARGUMENTS...` does. A start takes 0.4 s in place of 4 to 8 s, since the server in FOLDER, which the
first start makes, has imported TensorFlow, MLflow and the other libraries, though nothing of this project. It forks a
process with the arguments, variables, folder and open files of the caller, which passes signals on to it, and ends as
it ends.

Variables that libraries read at their import have a server for each set of values. What cannot be started so is started
by REAL itself: other programs, and a training without oneDNN.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import socket

# What halfstep/__init__.py sets, as the libraries read it at their import.
SET = {
    "KERAS_BACKEND": "tensorflow",
    "TF_USE_LEGACY_KERAS": "0",
    "MPLBACKEND": "agg",
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "GIT_PYTHON_REFRESH": "quiet",
    "TF_ENABLE_ONEDNN_OPTS": "1",
}
_READ_AT_IMPORT = ("DNNL_", "KERAS_", "KMP_", "LANG", "LC_", "LD_", "MKL_", "OMP_", "ONEDNN_", "PYTHON", "TF_", "XLA_")
_READ_LATER = ("PYTHONDONTWRITEBYTECODE", "PYTHONPATH")
_LIBRARIES = ("tensorflow", "keras", "mlflow", "pandas", "scipy.stats", "sklearn.metrics", "matplotlib.pyplot")
_MOST_SERVERS = 3
_FORWARDED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1")
_HEADER = 8  # bytes that say how long a message is


def variables() -> dict[str, str]:
    """The variables that decide which server can be used."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if name == "HOME" or name in SET or name.startswith(_READ_AT_IMPORT)
    }
    return {name: value for name, value in (SET | environment).items() if name not in _READ_LATER}


def inherited() -> list[object]:
    """What else a server hands on to what it forks: limits, priority, user, and the files that it sees."""
    import resource

    limits = [resource.getrlimit(number) for number in range(16)]
    spaces = [os.readlink(f"/proc/self/ns/{name}") for name in ("mnt", "net", "pid", "user")]
    return [limits, os.nice(0), os.getuid(), sorted(os.sched_getaffinity(0)), spaces]


def can_fork(arguments: list[str]) -> bool:
    """Whether a process with these arguments may start with the libraries imported."""
    if len(arguments) < 2:
        return False
    option, what, *others = arguments
    if option == "-c":
        return "multiprocessing.forkserver" in what
    if option != "-m" or not what.startswith(("halfstep.", "stages.")):
        return False
    return not what.endswith("stages.train") or _trains_with_onednn(others)


def _trains_with_onednn(arguments: list[str]) -> bool:
    """A variant sets whether TensorFlow uses oneDNN before the import; `mixed_float16` does not use it."""
    import re

    name = arguments[arguments.index("--variant") + 1] if "--variant" in arguments[:-1] else ""
    try:
        with open("params.yaml", encoding="utf-8") as file:
            text = file.read()
    except OSError:
        return False
    entry = re.search(rf"^  {name}:(.*(?:\n    .*)*)", text, re.MULTILINE)
    return name in ("float32", "mixed_bfloat16") and not (entry and "onednn: false" in entry[1])


def main() -> None:
    folder, real, *arguments = sys.argv[1:]
    plain = arguments[1:] if arguments[:1] == ["-B"] else arguments  # multiprocessing hands on that pytest set this
    connection = _connected(folder, real) if can_fork(plain) else None
    if connection is None:
        os.execv(real, [real, *arguments])
    import json
    import signal
    import socket

    numbers = [number for number in map(int, os.listdir("/proc/self/fd")) if _is_open(number)]
    numbers.remove(connection.fileno())
    ignored = [int(number) for number in signal.Signals if signal.getsignal(number) is signal.SIG_IGN]
    message = {
        "arguments": plain,
        "folder": os.getcwd(),
        "variables": dict(os.environ),
        "files": numbers,
        "mask": sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, []))),
        "ignored": ignored,
        "umask": _umask(),
        "real": real,
    }
    content = json.dumps(message).encode()
    try:
        connection.sendall(len(content).to_bytes(_HEADER, "big") + content)
        socket.send_fds(connection, [b"f"], numbers)
        pid = int.from_bytes(_part(connection, _HEADER), "big")
    except OSError:  # a server that ends or is killed just now has forked nothing
        os.execv(real, [real, *arguments])

    def forward(number: int, _: object) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, number)

    for name in _FORWARDED:
        if int(getattr(signal, name)) not in ignored:
            signal.signal(getattr(signal, name), forward)
    for number in numbers:
        if number > 2:
            os.close(number)
    try:
        status = int.from_bytes(_part(connection, _HEADER), "big", signed=True)
    except OSError:
        os._exit(70)  # the server is gone
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [-status])
        os.kill(os.getpid(), -status)
    os._exit(status if status >= 0 else 128 - status)


def _umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def _connected(folder: str, real: str) -> socket.socket | None:
    """A connection to the server of these variables, which is started first if need be; None if there are too many."""
    import fcntl
    import json
    import socket
    import zlib

    key = f"{zlib.crc32(json.dumps([sorted(variables().items()), inherited()]).encode()):08x}"
    address = f"{folder}/{key}"
    connection = socket.socket(socket.AF_UNIX)
    with open(f"{folder}/lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            connection.connect(address)
        except OSError:
            with suppress(FileNotFoundError):
                os.unlink(address)  # a server that a test has killed leaves it
            if len([name for name in os.listdir(folder) if len(name) == len(key)]) >= _MOST_SERVERS:
                return None
            _start_server(address, real)
            connection.connect(address)
    return connection


def _start_server(address: str, real: str) -> None:
    """Starts a server that belongs to no terminal and holds no file of the caller."""
    import socket
    import subprocess

    listening = socket.socket(socket.AF_UNIX)
    listening.bind(address)
    listening.listen(64)
    number = str(listening.fileno())
    outside = {name: value for name, value in os.environ.items() if name not in _READ_LATER}
    with open(f"{address}.log", "wb") as log:
        subprocess.Popen(
            [real, __file__, "--serve", address, number],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            env=outside | SET | variables(),
            pass_fds=[listening.fileno()],
            start_new_session=True,
        )


def serve(address: str, number: int) -> None:
    """Imports the libraries and forks what it is asked for, until the folder of its socket is gone."""
    import gc
    import importlib
    import selectors
    import signal
    import socket

    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    gc.disable()
    for name in _LIBRARIES:
        importlib.import_module(name)
    gc.freeze()
    gc.enable()
    listening = socket.socket(fileno=number)
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    selector = selectors.DefaultSelector()
    selector.register(listening, selectors.EVENT_READ)
    selector.register(reading, selectors.EVENT_READ)
    children: dict[int, socket.socket] = {}
    owner = int(os.environ["WARM_OWNER"])
    while os.path.exists(address) and _runs(owner):
        for event, _ in selector.select(1.0):
            if event.fileobj == reading:
                os.read(reading, 4096)
            elif event.fileobj is listening:
                connection, _address = listening.accept()
                pid = _forked(connection, [listening.fileno(), reading, writing, selector.fileno()], children)
                if pid:
                    children[pid] = connection
                    selector.register(connection, selectors.EVENT_READ)
            else:  # the caller was killed
                for pid, connection in children.items():
                    if connection is event.fileobj:
                        os.kill(pid, signal.SIGKILL)
                selector.unregister(event.fileobj)
        for pid in list(children):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                connection = children.pop(pid)
                with suppress(KeyError):
                    selector.unregister(connection)
                code = os.waitstatus_to_exitcode(status)
                with suppress(OSError):
                    connection.sendall(code.to_bytes(_HEADER, "big", signed=True))
                connection.close()
    for pid in children:
        os.kill(pid, signal.SIGKILL)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _forked(connection: socket.socket, own: list[int], children: dict[int, socket.socket]) -> int:
    """Forks the process that a caller asks for; returns its number, or 0 if the caller has gone."""
    import json
    import socket

    try:
        size = int.from_bytes(_part(connection, _HEADER), "big")
        message = json.loads(_part(connection, size))
        _, files, _flags, _sender = socket.recv_fds(connection, 1, 250)
    except (OSError, ValueError):
        connection.close()
        return 0
    if pid := os.fork():
        for number in files:
            os.close(number)
        with suppress(OSError):  # a caller that was killed meanwhile; `serve` sees that its socket has ended
            connection.sendall(pid.to_bytes(_HEADER, "big"))
        return pid
    for number in (*own, connection.fileno(), *(other.fileno() for other in children.values())):
        os.close(number)
    _run(message, files)
    return 0


def _part(connection: socket.socket, size: int) -> bytes:
    content = b""
    while len(content) < size:
        part = connection.recv(size - len(content))
        if not part:
            raise OSError("the other side has gone")
        content += part
    return content


def _run(message: dict[str, Any], files: list[int]) -> None:
    """Becomes the process that the message describes, and ends with it."""
    import atexit
    import fcntl
    import io
    import random
    import runpy
    import signal
    import threading
    import traceback
    import types

    os.setpgid(0, 0)
    signal.set_wakeup_fd(-1)
    for one in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(one, signal.SIG_IGN if int(one) in message["ignored"] else signal.SIG_DFL)
    if int(signal.SIGINT) not in message["ignored"]:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    above = max([*message["files"], *files, 2]) + 1
    moved = [fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, above) for number in files]
    for number in files:
        os.close(number)
    for number in range(3):
        if number not in message["files"]:
            os.close(number)
    for number, source in zip(message["files"], moved, strict=True):
        os.dup2(source, number)
        os.close(source)
    os.umask(message["umask"])
    os.chdir(message["folder"])
    os.environ.clear()
    os.environ.update(message["variables"])
    random.seed()
    sys.modules["numpy"].random.seed()
    kept = sys.stdin, sys.stdout, sys.stderr  # libraries may hold them
    encoding, errors = sys.stdout.encoding, sys.stdout.errors

    def stream(number: int, mode: str, how: str | None) -> Any:
        if number not in message["files"]:
            return None
        raw = open(number, mode, closefd=False)  # noqa: SIM115
        lines = number == 2 or raw.isatty()
        return io.TextIOWrapper(raw, encoding=encoding, errors=how, line_buffering=lines)

    sys.stdin, sys.stdout = stream(0, "rb", errors), stream(1, "wb", errors)
    sys.stderr = stream(2, "wb", "backslashreplace")
    vars(sys).update(__stdin__=sys.stdin, __stdout__=sys.stdout, __stderr__=sys.stderr)
    option, what, *others = message["arguments"]
    sys.argv, sys.orig_argv = [option, *others], [message["real"], *message["arguments"]]
    before = [path for path in message["variables"].get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = [message["folder"] if option == "-m" else "", *before, *sys.path[1:]]
    if python := message["variables"].get("WARM_PYTHON"):
        import multiprocessing.spawn

        multiprocessing.spawn.set_executable(python)
    sys.modules["__main__"] = types.ModuleType("__main__")
    signal.pthread_sigmask(signal.SIG_SETMASK, message["mask"])
    status, interrupted = 0, False
    try:
        if option == "-m":
            getattr(runpy, "_run_module_as_main")(what)  # noqa: B009
        else:
            exec(compile(what, "<string>", "exec"), sys.modules["__main__"].__dict__)
    except SystemExit as error:
        if isinstance(error.code, int) or error.code is None:
            status = error.code or 0
        else:
            print(error.code, file=sys.stderr)
            status = 1
    except KeyboardInterrupt:
        traceback.print_exc()
        interrupted = True
    except BaseException:
        traceback.print_exc()
        status = 1
    try:
        getattr(threading, "_shutdown")()  # noqa: B009
        getattr(atexit, "_run_exitfuncs")()  # noqa: B009
        for output in (sys.stdout, sys.stderr):
            if output is not None:
                output.flush()
    finally:
        used = os.environ.get("TF_ENABLE_ONEDNN_OPTS", SET["TF_ENABLE_ONEDNN_OPTS"])
        if used != message["variables"].get("TF_ENABLE_ONEDNN_OPTS", SET["TF_ENABLE_ONEDNN_OPTS"]):
            os.write(2, b"oneDNN was set after TensorFlow was imported: start this process by itself\n")
            status = 70
        if interrupted:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        del kept
        os._exit(status & 0xFF)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2], int(sys.argv[3]))
    else:
        main()
