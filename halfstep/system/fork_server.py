"""Fork servers that have already imported TensorFlow, so that a worker process starts in 0.5 s instead of 5 s.

TensorFlow reads some environment variables when it is imported, so each set of variables has its own server, which
lives until the stage ends. All repeats are forked from it. Between processes of one server nothing was shown beyond the
noise of rounds; servers may differ by 2 % (docs/evidence.md), which is in the 1 % of each arm that `compare` adds.
`multiprocessing` supports one fork server per process; this module replaces it while a worker starts.
"""

from __future__ import annotations

import atexit
import io
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from multiprocessing import forkserver, resource_tracker, util
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

from halfstep.system import interpreters, sealing
from halfstep.system.imports import search_path
from halfstep.system.private import private_folder
from halfstep.system.supervision import die_with_parent

_END_S = 2.0  # for processes that have been killed
PRELOADED = "halfstep.profile.worker"  # it imports TensorFlow


def path_of(text: str) -> Path:
    """A path that another process has sent."""
    return Path(text)


# Releases of Python have its class in different modules, so that one cannot load what another one pickles.
ForkingPickler.register(type(Path()), lambda path: (path_of, (str(path),)))

_servers: dict[tuple[frozenset[tuple[str, str]], str | None, str], forkserver.ForkServer] = {}


def start_process(
    name: str,
    target: Callable[..., None],
    arguments: tuple[Any, ...],
    variables: Mapping[str, str],
    *,
    preload: str | None = None,
    python: str | None = None,
    may_have_children: bool = False,
) -> BaseProcess:
    """Starts `target(*arguments)` in a process with these environment variables, forked from their server.

    `preload` is the module that the server imports first; None: the worker of `profile`. `python` is another
    interpreter for it; None: this one. With `may_have_children`, the process may itself use `multiprocessing`, as a
    script does.

    The process leads a group of its own, so that it can be stopped with its children. Ctrl-C does not reach it: the
    parent ends it.
    """
    context = multiprocessing.get_context("forkserver")
    whole = (_temporary_folder(), target, *arguments)
    process = context.Process(target=_in_own_group, args=whole, name=name, daemon=not may_have_children)
    server = start_server(variables, preload, python)
    with _in_interpreter(python, variables), _installed(server):
        process.start()
    return process


@cache
def _temporary_folder() -> str:
    """The folder of the processes' temporary files, removed when the stage ends: they are killed before they could.

    AutoGraph writes one file for each function that it converts.
    """
    folder = tempfile.mkdtemp(prefix="halfstep-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _in_own_group(folder: str, target: Callable[..., None], *arguments: Any) -> None:
    """Runs in the process. It ends with the server, also where it is stopped, and so if the stage is killed.

    `multiprocessing` hands every process the pipe by which the server knows that the stage lives; a stopped process
    would keep it open.
    """
    os.setpgid(0, 0)
    server = getattr(forkserver, "_forkserver")  # noqa: B009
    if (alive := getattr(server, "_forkserver_alive_fd", None)) is not None:
        os.close(alive)
        setattr(server, "_forkserver_alive_fd", None)  # noqa: B010
    die_with_parent(signal.SIGKILL)
    tempfile.tempdir = folder
    if isinstance(sys.stdout, io.TextIOWrapper):  # what is printed is shown at once, and not lost by a kill
        sys.stdout.reconfigure(line_buffering=True)
    target(*arguments)


def start_server(
    variables: Mapping[str, str], preload: str | None = None, python: str | None = None
) -> forkserver.ForkServer:
    """Starts the server of these variables, module and interpreter unless it runs; does not wait for its imports."""
    module = preload or PRELOADED
    server = _servers.setdefault((frozenset(variables.items()), python, module), forkserver.ForkServer())
    server.set_forkserver_preload([module])
    resource_tracker.ensure_running()  # it unblocks SIGINT, so it must run before SIGINT is blocked
    _create_short_temporary_folder()
    with _in_interpreter(python, variables), _sigint_blocked():
        server.ensure_running()
    return server


@contextmanager
def _in_interpreter(python: str | None, variables: Mapping[str, str]) -> Iterator[None]:
    """In the block, processes start in this interpreter, this one if None, with these environment variables."""
    if python is None:
        with _environment({**variables, **search_path()}):
            yield
        return
    folder = f"{_temporary_folder()}/elsewhere"
    with _environment({**variables, **interpreters.variables_of(folder)}), interpreters.started_in(python, folder):
        yield


def stop_servers() -> None:
    """Ends all servers, whose processes must have ended. The next process starts from a new one."""
    _kill_servers()
    for server in _servers.values():
        getattr(server, "_stop")()  # noqa: B009  # waits for it, and removes its socket
    _servers.clear()


def _create_short_temporary_folder() -> None:
    """Creates the folder of the servers' sockets: a socket's path has at most 107 bytes; `TMPDIR` may have more.

    `multiprocessing` creates the folder once, and removes it when this process ends.
    """
    before, tempfile.tempdir = tempfile.tempdir, str(private_folder())
    try:
        util.get_temp_dir()
    finally:
        tempfile.tempdir = before


@contextmanager
def _sigint_blocked() -> Iterator[None]:
    """What is started in the block inherits the mask, and so do its processes. The parent still gets the signal."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@atexit.register
def _kill_servers() -> None:
    """A server that still imports TensorFlow would end seconds after its parent."""
    for server in _servers.values():
        pid = getattr(server, "_forkserver_pid", None)
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    if _servers:
        sealing.undo(Path.cwd(), wait_s=_END_S)


@contextmanager
def _installed(server: forkserver.ForkServer) -> Iterator[None]:
    original = forkserver.connect_to_new_process
    forkserver.connect_to_new_process = server.connect_to_new_process
    try:
        yield
    finally:
        forkserver.connect_to_new_process = original


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
