"""Shares of the instants of traced steps: of made-up threads, and of a real trace with a planted layer."""

from __future__ import annotations

import lzma
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest

from halfstep.errors import TraceError
from halfstep.params.schema import ModelParams, TrainParams, Variant
from halfstep.profile.trace import Operation
from halfstep.profile.trace.messages import message_class
from halfstep.profile.trace.timeline import traced_steps
from halfstep.profile.trace.xspace import _FIELDS
from halfstep.profile.worker import Worker
from halfstep.results.profile import HOST
from halfstep.tasks.trial import Trial
from tests.tasks.conftest import Own, prepare_task
from tests.tasks.conftest import own as own

MS = 10**9  # picoseconds
NAMES = {1: b"train", 2: b"net/a:Mul", 3: b"net/b:MatMul", 4: b"net/c:Cast", 5: b"ExecutorState::Process"}


def written(path: Path, *threads: tuple[str, list[tuple[int, float, float]]]) -> Path:
    """A trace with these threads: a name, and for each event its number in `NAMES`, its start and its end in ms."""
    space = message_class("XSpace", "halfstep.profiler", _FIELDS)()
    plane = space.planes.add(name=b"/host:CPU")
    for number, event_name in NAMES.items():
        entry = plane.event_metadata.add(key=number)
        entry.value.name = event_name
    entry = plane.stat_metadata.add(key=1)
    entry.value.name = b"step_num"
    for name, events in threads:
        line = plane.lines.add(name=name.encode(), timestamp_ns=10**6)  # one ms
        for number, start, end in events:
            event = line.events.add(metadata_id=number, offset_ps=int(start * MS), duration_ps=int((end - start) * MS))
            if number == 1:
                event.stats.add(metadata_id=1, int64_value=0)
    path.write_bytes(space.SerializeToString())
    return path


def a(is_input: bool = False) -> Operation:
    return Operation("Mul", "net/a", is_input=is_input)


B, C = Operation("MatMul", "net/b"), Operation("Cast", "net/c")
MARKERS = ("python", [(1, 0.0, 10.0), (1, 10.0, 20.0), (1, 20.0, 30.0)])  # the first is left out


def test_instants_are_shared_by_what_runs_then(tmp_path: Path) -> None:
    one = ("tf_Compute/1", [(2, 2.0, 4.0), (2, 10.0, 14.0), (3, 24.0, 28.0)])
    other = ("tf_Compute/2", [(5, 10.0, 30.0), (3, 12.0, 18.0)])
    first, second = traced_steps(written(tmp_path / "x", MARKERS, one, other))
    assert (first.step_ms, first.shares_ms, first.idle_ms) == (10.0, {a(): 2 + 2 / 2, B: 2 / 2 + 4}, {HOST: 2.0})
    assert (second.step_ms, second.shares_ms, second.idle_ms) == (10.0, {B: 4.0}, {HOST: 6.0})


def test_innermost_operation_of_a_thread_counts(tmp_path: Path) -> None:
    thread = ("tf_Compute/1", [(2, 10.0, 18.0), (3, 12.0, 15.0), (4, 13.0, 14.0), (4, 15.0, 16.0)])
    step, _ = traced_steps(written(tmp_path / "x", MARKERS, thread))
    assert step.shares_ms == {a(): 4.0, B: 2.0, C: 2.0}
    assert step.step_ms == sum(step.shares_ms.values()) + sum(step.idle_ms.values())


def test_step_lasts_until_the_next_begins(tmp_path: Path) -> None:
    markers = ("python", [(1, 0.0, 10.0), (1, 10.0, 18.0), (1, 20.0, 30.0)])
    steps = traced_steps(written(tmp_path / "x", markers, ("tf_Compute/1", [(2, 11.0, 12.0)])))
    assert [(step.step_ms, step.idle_ms[HOST]) for step in steps] == [(10.0, 9.0), (10.0, 10.0)]


def test_last_step_of_a_turn_ends_before_the_process_stands_still(tmp_path: Path) -> None:
    markers = ("python", [(1, 0.0, 10.0), (1, 10.0, 19.0), (1, 20.0, 30.0), (1, 90.0, 100.0), (1, 101.0, 111.0)])
    operations = ("tf_Compute/1", [(2, 11.0, 12.0), (2, 28.0, 29.0), (2, 50.0, 60.0), (2, 102.0, 103.0)])
    steps = traced_steps(written(tmp_path / "x", markers, operations), [3, 2])
    assert [(step.step_ms, step.idle_ms[HOST]) for step in steps] == [
        (10.0, 9.0),
        (10.0, 9.0),
        (11.0, 11.0),
        (10.0, 9.0),
    ]


@pytest.mark.parametrize(
    ("threads", "message"),
    [
        ([("python", [(1, 0.0, 10.0)])], "has 1 marked steps; at least 2 are needed"),
        ([MARKERS], "shows no operations"),
    ],
)
def test_trace_without_steps_or_operations(tmp_path: Path, threads: list, message: str) -> None:
    with pytest.raises(TraceError, match=message):
        traced_steps(written(tmp_path / "x", *threads))


def test_kernels_of_a_gpu_share_the_instants_of_its_streams(tmp_path: Path) -> None:
    """Kernels count by their operation, copies by their own name; what the host runs does not count."""
    path = written(tmp_path / "x", MARKERS, ("tf_Compute/1", [(2, 10.0, 30.0)]))
    space = message_class("XSpace", "halfstep.profiler", _FIELDS)()
    space.ParseFromString(path.read_bytes())
    plane = space.planes.add(name=b"/device:GPU:0")
    for number, name in {1: b"sm80_xmma_fprop_f16f16", 2: b"MemcpyH2D"}.items():
        plane.event_metadata.add(key=number).value.name = name
    plane.stat_metadata.add(key=1).value.name = b"tf_op"
    for name, number, start, end in ((b"Stream #1(Compute)", 1, 8, 16), (b"Stream #2(MemcpyH2D)", 2, 14, 18)):
        line = plane.lines.add(name=name, timestamp_ns=10**6)
        event = line.events.add(metadata_id=number, offset_ps=start * MS, duration_ps=(end - start) * MS)
        if number == 1:
            event.stats.add(metadata_id=1, str_value=b"net/conv/Conv2D:Conv2D")
    derived = plane.lines.add(name=b"TensorFlow Ops", timestamp_ns=10**6)
    derived.events.add(metadata_id=1, offset_ps=0, duration_ps=30 * MS)
    path.write_bytes(space.SerializeToString())
    step, idle = traced_steps(path)
    assert step.shares_ms == {
        Operation(
            "Conv2D", "net/conv/Conv2D", "Device", dtype="float16", tensor_core=True, kernel="sm80_xmma_fprop_f16f16"
        ): 4.0 + 1,
        Operation("", "", "Device", kernel="MemcpyH2D"): 1.0 + 2,
    }
    assert (step.idle_ms[HOST], idle.idle_ms[HOST]) == (2.0, 10.0)


PLANTED = """
class Planted(keras.layers.Layer):
    def call(self, x):
        slow = tf.fill((700, 700), tf.cast(tf.reduce_mean(x), tf.float32))
        return x + tf.cast(1e-9 * tf.reduce_mean(tf.linalg.matmul(slow, slow)), x.dtype)


def build(*, batch_size, seed):
    inputs = keras.Input((4,))
    hidden = keras.layers.BatchNormalization(name="norm")(keras.layers.Dense(8)(inputs))
    hidden = Planted(name="planted")(hidden)
    outputs = keras.layers.Dense(1, activation="sigmoid", dtype="float32")(hidden)
    return changed(model=keras.Model(inputs, outputs))
"""


def test_kinds_of_a_real_trace_add_up_to_the_step_and_name_what_was_planted(own: Own) -> None:
    task, settings = own(PLANTED), TrainParams(batch_size=8, epochs=0)
    prepare_task(task, settings, Path("data/prepared"))
    worker = Worker(Trial(task, ModelParams(), settings, Variant(policy="mixed_float16"), 0))
    worker.warm_up(2)
    worker.begin_account(least_steps=10)
    assert worker.steps_run() >= 10
    for _ in range(3):
        worker.account_window(4, lead_in=1)
    stretches = worker.end_account().read()
    assert len(stretches) == 3
    assert max(step_ms for step_ms, _ in stretches) < 5 * min(step_ms for step_ms, _ in stretches)
    step_ms, parts = stretches[0]
    layers = worker._layers
    assert (layers.scales_loss, layers.classes["norm"]) == (True, "BatchNormalization")
    assert "adam" in "".join(layers.optimizers)
    kinds = {part.kind for part in parts}
    assert {"cast", "loss_scaling", "optimizer", "normalization", "matrix_product", "memory", "input"} <= kinds
    assert len({replace(part, time_ms=0.0) for part in parts}) == len(parts)
    longest = max((part for part in parts if part.kind != HOST), key=lambda part: part.time_ms)
    assert (longest.kind, longest.layer, longest.layer_class) == ("matrix_product", "planted", "Planted")
    assert (longest.operation.removesuffix(" (gradient)"), longest.dtype) == ("MatMul", "float32")
    products = [part for part in parts if part.layer_class == "Dense" and part.kind == "matrix_product"]
    assert {part.dtype for part in products} == {"float16", "float32"}  # the last layer is float32
    assert sum(part.time_ms for part in parts) == pytest.approx(step_ms)
    assert all(part.time_ms >= 0 for part in parts)


GROUPED = """
def build(*, batch_size, seed):
    inputs = keras.Input((4,))
    hidden = keras.layers.Reshape((16, 16, 4))(keras.layers.Dense(1024)(inputs))
    hidden = keras.layers.Conv2D(64, 7, groups=4, name="grouped")(hidden)
    hidden = keras.layers.GlobalAveragePooling2D()(hidden)
    outputs = keras.layers.Dense(1, activation="sigmoid", dtype="float32")(hidden)
    return changed(model=keras.Model(inputs, outputs))
"""


@pytest.mark.slow
@pytest.mark.parametrize("xla", [False, True])
def test_what_xla_compiled_for_a_cpu_is_not_idle_time(own: Own, xla: bool) -> None:
    """Keras compiles a convolution in groups with XLA even where the step is not."""
    task, settings = own(GROUPED), TrainParams(batch_size=8, epochs=0)
    prepare_task(task, settings, Path("data/prepared"))
    worker = Worker(Trial(task, ModelParams(), settings, Variant(policy="float32", xla=xla), 0))
    worker.warm_up(2)
    worker.begin_account(least_steps=0)
    worker.account_window(4, lead_in=1)
    ((step_ms, parts),) = worker.end_account().read()
    assert sum(part.time_ms for part in parts) == pytest.approx(step_ms)
    times_ms = {kind: sum(part.time_ms for part in parts if part.kind == kind) for kind in ("convolution", HOST)}
    assert times_ms["convolution"] > 0.4 * step_ms
    assert times_ms[HOST] < 0.4 * step_ms
    assert {part.dtype for part in parts if part.kind == "convolution"} == {"float32"}
    products = [part for part in parts if part.kind == "matrix_product"]
    assert products
    assert {part.layer_class for part in products} == {"Dense"}


def test_kernels_of_xla_belong_to_the_operations_of_the_graph(tmp_path: Path) -> None:
    """Ten steps of the default CNN in mixed_float16 with XLA, traced on an H100 (TensorFlow 2.21.0, CUDA 12.5).

    Of the host's threads only the markers of the steps are kept. The expected times are those of xprof 2.24.2, over all
    ten steps.
    """
    path = tmp_path / "h100.xplane.pb"
    path.write_bytes(lzma.decompress(Path(__file__).with_name("h100_mixed_float16_xla.xplane.pb.xz").read_bytes()))
    steps = traced_steps(path)
    assert len(steps) == 9
    by_type, by_dtype = defaultdict[str, float](float), defaultdict[str | None, float](float)
    for step in steps:
        for operation, time_ms in step.shares_ms.items():
            by_type[operation.type or "unknown"] += time_ms / len(steps)
            by_dtype[operation.dtype] += time_ms / len(steps)
    of_xprof = {"Conv2DBackpropFilter": 0.0285, "Conv2DBackpropInput": 0.0132, "Conv2D": 0.0120, "MatMul": 0.0052}
    of_xprof |= {"Sum": 0.0187, "Mean": 0.0180, "Cast": 0.0091, "Relu": 0.0030}
    assert {name: by_type[name] for name in of_xprof} == pytest.approx(of_xprof, rel=0.03)
    total_ms = sum(by_type.values())
    assert by_type["unknown"] < 0.1 * total_ms  # copies
    assert by_dtype["float16"] > 0.6 * total_ms
    used = {operation.type: operation.tensor_core for operation in steps[0].shares_ms}
    assert (used["Conv2DBackpropInput"], used["Relu"], used.get("")) == (True, False, None)
    filters = {operation.name for operation in steps[0].shares_ms if operation.type == "Conv2DBackpropFilter"}
    assert "gradient_tape/cnn_1/conv2d_1/convolution/Conv2DBackpropFilter" in filters
