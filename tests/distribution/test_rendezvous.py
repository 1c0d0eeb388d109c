from __future__ import annotations

import socket
import threading
import time
from contextlib import closing

import pytest

from stages.distribution import rendezvous
from stages.distribution.cluster import Cluster
from stages.errors import LostRankError, ParameterError


def clusters(hosts: int) -> list[Cluster]:
    with_ports = [socket.create_server(("127.0.0.1", 0)) for _ in range(hosts)]
    addresses = tuple(f"127.0.0.1:{found.getsockname()[1]}" for found in with_ports)
    for found in with_ports:
        found.close()
    return [Cluster(hosts, rank, addresses) for rank in range(hosts)]


def test_all_ranks_meet_however_late_they_start() -> None:
    found, ended = clusters(3), list[int]()

    def start(cluster: Cluster) -> None:
        time.sleep(0.4 * cluster.rank)
        rendezvous.meet(cluster)
        ended.append(cluster.rank)

    threads = [threading.Thread(target=start, args=(cluster,)) for cluster in found]
    for thread in threads:
        thread.start()
    time.sleep(0.6)
    assert ended == []  # the last has not started
    for thread in threads:
        thread.join(10)
    assert sorted(ended) == [0, 1, 2]
    for cluster in found:  # the ports are free again
        socket.create_server(("127.0.0.1", int(cluster.addresses[cluster.rank].rpartition(":")[2]))).close()


def test_missing_ranks_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HALFSTEP_RANKS_TIMEOUT_S", "0.5")
    first, second, _ = clusters(3)
    port = int(first.addresses[2].rpartition(":")[2])
    another_program = socket.create_server(("127.0.0.1", port))
    with closing(another_program), pytest.raises(LostRankError) as caught:
        rendezvous.meet(first)
    assert str(caught.value).startswith(f"train: rank 1 ({first.addresses[1]}), rank 2 ({first.addresses[2]}) did not")
    assert caught.value.exit_status == 75
    assert rendezvous.silent_ranks(first) == [1, 2]
    assert second.rank == 1


def test_port_in_use_is_refused() -> None:
    cluster = clusters(2)[0]
    port = int(cluster.addresses[0].rpartition(":")[2])
    with closing(socket.create_server(("", port))), pytest.raises(ParameterError) as caught:
        rendezvous.meet(cluster)
    assert str(caught.value).startswith(f"TF_CONFIG: the port of rank 0 ({cluster.addresses[0]}) cannot be used")


@pytest.mark.parametrize("text", ["", "soon", "0", "-3", "nan", "inf"])
def test_timeout_must_be_a_number(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HALFSTEP_RANKS_TIMEOUT_S", text)
    with pytest.raises(ParameterError, match=r"HALFSTEP_RANKS_TIMEOUT_S is '.*'; it must be a number of seconds"):
        rendezvous.timeout_s()
