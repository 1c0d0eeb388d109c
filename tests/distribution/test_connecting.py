from __future__ import annotations

import json
import os

import pytest
import tensorflow as tf

from stages.distribution import connecting
from stages.distribution.cluster import Cluster, from_environment
from stages.distribution.connecting import lost_ranks_explained, strategy_of, with_addresses
from stages.errors import LostRankError, ModelError, ParameterError

HOSTS = Cluster(2, 0, ("127.0.0.1:9", "127.0.0.1:1"))  # nobody listens on these ports


def test_one_replica_has_no_strategy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", "not read")
    assert strategy_of(1) is None


@pytest.mark.parametrize("rank", [0, 1, 3])
def test_addresses_under_slurm(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {"STEP_NUM_TASKS": "4", "PROCID": str(rank), "STEP_NODELIST": "gpu[01-02]", "JOB_ID": "1001"}
    for name, value in (variables | {"STEP_TASKS_PER_NODE": "2(x2)"}).items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    monkeypatch.setenv("TF_CONFIG", "")
    before = os.environ.get("CUDA_VISIBLE_DEVICES")
    cluster = from_environment(8)
    assert cluster is not None
    found = with_addresses(cluster)
    hosts = [address.rpartition(":")[0] for address in found.addresses]
    ports = [int(address.rpartition(":")[2]) for address in found.addresses]
    assert hosts == ["gpu01", "gpu01", "gpu02", "gpu02"]
    assert ports == [ports[0], ports[0] + 1] * 2
    assert found.rank == rank
    task = {"type": "worker", "index": rank}
    assert json.loads(os.environ["TF_CONFIG"]) == {"cluster": {"worker": list(found.addresses)}, "task": task}
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == before  # `srun` has set it
    assert with_addresses(found) == found


def test_list_of_hosts_that_slurm_would_not_write_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {"STEP_NUM_TASKS": "2", "PROCID": "0", "STEP_NODELIST": "gpu[a-", "STEP_TASKS_PER_NODE": "1(x2)"}
    for name, value in variables.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    with pytest.raises(ParameterError, match="Slurm's variables cannot be read"):
        with_addresses(Cluster(2, 0, source="SLURM_STEP_NUM_TASKS"))


def test_more_replicas_than_a_host_without_gpus_can_have_are_refused() -> None:
    if tf.config.list_physical_devices("GPU"):
        pytest.skip("has a GPU")
    with pytest.raises(ParameterError, match=r"train\.replicas is 4 on 2 hosts, 2 each, and this host has no GPU"):
        connecting._devices(4, 2, HOSTS)


def test_more_replicas_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: ["GPU:0", "GPU:1"])
    for replicas, local, cluster in ((3, 3, None), (6, 3, HOSTS)):
        with pytest.raises(ParameterError) as caught:
            connecting._devices(replicas, local, cluster)
        most = 4 if cluster else 2
        assert f"TensorFlow can use 2 GPUs of this host; set train.replicas to at most {most}" in str(caught.value)


def test_error_of_a_collective_names_the_ranks_that_do_not_answer() -> None:
    lost = tf.errors.UnavailableError(None, None, "Connection reset\nby peer")
    with pytest.raises(LostRankError) as caught, lost_ranks_explained(HOSTS):
        raise lost
    assert str(caught.value).startswith("train: rank 1 (127.0.0.1:1) has ended, and the training with it (Connection")
    with pytest.raises(LostRankError), lost_ranks_explained(HOSTS):  # while the model is built
        raise ModelError("cannot be built") from lost
    with pytest.raises(ModelError), lost_ranks_explained(HOSTS):
        raise ModelError("cannot be built") from ValueError()
    with pytest.raises(tf.errors.UnavailableError), lost_ranks_explained(None):
        raise lost
