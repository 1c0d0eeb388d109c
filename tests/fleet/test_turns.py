"""What `python -m stages.fleet profile` decides before it measures. Needs no Ray."""

from __future__ import annotations

import json

from stages import files
from stages.fleet.cluster import Job, Node, Outcome
from stages.fleet.profile import kinds, turns
from stages.machine import fingerprint


def node(name: str, host: str) -> Node:
    return Node(node_id=name, host=host, address="127.0.0.1", cpus=2, gpus=0)


def described(name: str, machine: dict[str, str] | None) -> Outcome:
    content = {} if machine is None else {str(files.ENVIRONMENT_FILE): json.dumps(machine).encode()}
    status, reason = (0, "") if machine else (1, "no driver")
    return Outcome(Job(name, "stages.environment"), "host", status, reason, content)


def test_two_nodes_of_one_host_take_turns() -> None:
    nodes = [node("a", "one"), node("b", "two"), node("c", "one"), node("d", "one")]
    jobs = [Job(item.node_id, "stages.fleet.measurement") for item in nodes]
    groups = [[job.name for job in group] for group in turns(jobs, nodes)]
    assert groups == [["a", "b"], ["c"], ["d"]]


def test_nodes_with_the_same_fingerprint_count_once() -> None:
    nodes = [node(name, name) for name in "abcd"]
    machines = [{"device": "CPU"}, {"device": "GPU"}, None, {"device": "CPU"}]
    outcomes = [described(item.node_id, machine) for item, machine in zip(nodes, machines, strict=True)]
    found = kinds(nodes, outcomes)
    assert {digest: item.node_id for digest, item in found.items()} == {
        fingerprint.digest({"device": "CPU"}): "a",
        fingerprint.digest({"device": "GPU"}): "b",
    }
