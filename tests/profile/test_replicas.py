"""Several replicas are timed through the step that trains them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from stages import files
from stages.fork_server import stop_servers
from stages.params import ModelParams, ProfileParams, TaskParams, TrainParams, Variant
from stages.profile import max_batch
from stages.profile.extras import Wanted
from stages.profile.max_batch import largest_batch
from stages.profile.records import ArmConfig, Measurement
from stages.profile.repeats import Repeats
from stages.profile.runner import Context as Asked
from stages.profile.runner import measure
from stages.profile.summary import Context, summarize
from stages.profile.trace import read_trace
from stages.profile.trace.model import Operation
from stages.results.training import MODEL
from stages.tasks.spec import TaskSpec
from stages.train.training import Trained, train

pytestmark = pytest.mark.fleet

PROTOCOL = ProfileParams(
    processes=2, rounds=2, steps_per_round=2, warmup_steps=2, trace_steps=2, inference_batch_sizes=(1, 5)
)
SEED = 1


@pytest.fixture(scope="module")
def spec(prepared_template: Path) -> Iterator[TaskSpec]:
    yield TaskSpec(
        TaskParams(), ModelParams(), TrainParams(replicas=2, batch_size=8, epochs=1), None, prepared_template
    )
    stop_servers()


@pytest.fixture(scope="module")
def trained(spec: TaskSpec) -> Trained:
    return train(spec.at_one_replica(), Variant(policy="float32"), SEED)


@pytest.fixture(scope="module")
def measurement(spec: TaskSpec, trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Measurement:
    folder = tmp_path_factory.mktemp("trained")
    trained.model.save(folder / MODEL)
    files.write_manifest(folder)
    entries = {name: Variant(policy=name) for name in ("float32", "mixed_bfloat16")}
    configs = {name: ArmConfig(spec, entry, SEED) for name, entry in entries.items()}
    configs[files.CONTROL] = configs["float32"]
    asked = dict.fromkeys(("target_precision", "max_seconds", "processes", "rounds", "min_speedup"), 1.0)
    kept = Repeats(tmp_path_factory.mktemp("kept"), asked)
    return measure(configs, "float32", PROTOCOL, Asked(Wanted(trained={SEED: folder})), kept)


def test_all_arms_are_measured_with_the_replicas(measurement: Measurement) -> None:
    for record in measurement.records.values():
        configuration = record.settings.configuration
        assert (configuration.replicas, record.settings.in_force.batch_size) == (2, 8)
        assert not record.settings.in_force.xla
        assert len(record.times.rounds) in (2, 4)  # the control takes part in half of them
        assert {call.batch_size for call in record.times.calls} == {1, 5}


def test_traces_have_the_steps_and_types_of_both_replicas(measurement: Measurement) -> None:
    for name, record in measurement.records.items():
        assert record.trace is not None
        (path,) = record.trace.directory.rglob("*.xplane.pb")
        trace = read_trace(path, record.trace.graph_dtypes)
        assert len(trace.steps) >= PROTOCOL.trace_steps  # type: ignore[operator]
        products = [row for row in trace.operations if row.type.endswith("Conv2D")]  # also _MklNativeConv2D
        assert {row.name.startswith("replica_1/") for row in products} == {True, False}
        assert any(row.is_collective for row in trace.operations)
        assert not any(row.is_collective for row in trace.compute if isinstance(row, Operation))
        assert {row.dtype for row in products} == {"float32" if name[0] in "_f" else name.removeprefix("mixed_")}
        summary = summarize(name, record, Context(measurement.protocol, measurement.trace_steps), trace)
        assert summary.metrics["train_images_per_s"] > 0


def test_trained_weights_are_evaluated_on_one_device(measurement: Measurement, trained: Trained) -> None:
    found = np.load(measurement.records["mixed_bfloat16"].same_weights[SEED])
    assert trained.outputs is not None
    np.testing.assert_allclose(found, trained.outputs, atol=0.02)


def test_sizes_of_the_largest_batch_are_multiples_of_the_replicas(
    spec: TaskSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(max_batch, "LARGEST", 50)
    train = spec.train.model_copy(update={"replicas": 3, "batch_size": 6})
    config = ArmConfig(TaskSpec(spec.task, spec.model, train, None, spec.directory), Variant(policy="float32"), SEED)
    found = largest_batch(config, ProfileParams(memory_limit_mib=2048), "CPU")
    assert found.batch_size % 3 == 0
    assert 36 <= found.batch_size <= 50
    assert all(size % 3 == 0 for size, _ in found.tried)
