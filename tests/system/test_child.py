from __future__ import annotations

import os
from collections.abc import Iterator
from multiprocessing.connection import Connection

import pytest

from halfstep.system.child import Child, Lost
from halfstep.system.fork_server import stop_servers


def run(connection: Connection) -> None:
    connection.send([1.5])
    connection.send("it fails")
    connection.send(3)
    os._exit(7)


@pytest.fixture
def child() -> Iterator[Child]:
    with Child("one", run, (), {}, preload="json") as started:
        yield started
    stop_servers()


def test_answer_is_what_was_asked_for_or_a_failure_or_the_child_is_lost(child: Child) -> None:
    assert child.receive(list[float], str) == [1.5]
    assert child.receive(list[float], str) == "it fails"
    with pytest.raises(AssertionError, match="it has sent int"):
        child.receive(list[float], str)
    assert child.receive(list[float], str) == Lost(7)
    child.send("to nobody")
    assert child.receive(list[float], str) == Lost(7)
