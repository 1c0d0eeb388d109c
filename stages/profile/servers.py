"""Servers that workers are forked from, with TensorFlow imported: half a second for a start instead of five.

TensorFlow reads some environment variables at its import, so there is a server for each set of them. `multiprocessing`
keeps one server a process; others of its own class stand in for it while a worker starts.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PRELOADED = ["stages.quiet", "stages.profile.worker"]

_servers: dict[frozenset[tuple[str, str]], forkserver.ForkServer] = {}


def start_process(
    name: str, target: Callable[..., None], arguments: tuple[Any, ...], variables: Mapping[str, str]
) -> BaseProcess:
    """Starts `target(*arguments)` in a process that is forked from the server of these environment variables."""
    process = multiprocessing.get_context("forkserver").Process(target=target, args=arguments, name=name, daemon=True)
    with _set({**variables, **_search_path()}), _in_place(_server(variables)):
        process.start()
    return process


def _server(variables: Mapping[str, str]) -> forkserver.ForkServer:
    key = frozenset(variables.items())
    if key not in _servers:
        _servers[key] = forkserver.ForkServer()
        _servers[key].set_forkserver_preload(PRELOADED)
    return _servers[key]


def _search_path() -> dict[str, str]:
    """A server that does not find what it is to import goes on without a word, and each worker imports it anew."""
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))}


@contextmanager
def _in_place(server: forkserver.ForkServer) -> Iterator[None]:
    usual = forkserver.connect_to_new_process
    forkserver.connect_to_new_process = server.connect_to_new_process
    try:
        yield
    finally:
        forkserver.connect_to_new_process = usual


@contextmanager
def _set(variables: Mapping[str, str]) -> Iterator[None]:
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
