"""Real traces of models with loops: xprof by itself takes the iterations of a loop as the steps."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from halfstep.profile.graph_dtypes import graph_dtypes
from halfstep.profile.trace import Operation, Trace, read_trace
from halfstep.profile.trace.xspace import parse, without_loops

MARKED = 7  # of which xprof drops the first and the last
LENGTH, ITERATIONS = 12, 3  # of a sequence, and of the loops that are not layers of Keras
PARTS = {"host_compute_ms", "input_ms", "output_ms", "compilation_ms", "other_ms"}
COMPUTE = {"float32": "float32", "mixed_bfloat16": "bfloat16", "mixed_float16": "float16"}


@dataclass(frozen=True)
class Traced:
    """A trace, and the least and most that each marked step can have taken by the clock, in milliseconds."""

    trace: Trace
    inside_ms: tuple[float, ...]
    outside_ms: tuple[float, ...]

    def matrix_products(self, part: str) -> list[Operation]:
        """The products whose name contains `part`."""
        return [row for row in self.trace.operations if row.category == "matrix" and part in row.name]


def loop_layer() -> Any:
    import keras
    import tensorflow as tf

    class Loop(keras.layers.Layer):
        def build(self, shape: Any) -> None:
            self.kernel = self.add_weight(shape=(shape[-1], shape[-1]))

        def call(self, inputs: Any) -> Any:
            def body(number: Any, state: Any) -> Any:
                return number + 1, tf.tanh(tf.matmul(state, tf.cast(self.kernel, state.dtype)))

            return tf.while_loop(lambda number, _: number < ITERATIONS, body, (0, inputs))[1]

        def compute_output_shape(self, shape: Any) -> Any:
            return shape

    return Loop()


def looping_model() -> Any:
    import keras
    import tensorflow as tf

    class SeveralUpdates(keras.Model):
        def train_step(self, data: Any) -> Any:
            x, y = data

            def body(number: Any, total: Any) -> Any:
                with tf.GradientTape() as tape:
                    loss = self.compute_loss(y=y, y_pred=self(x, training=True))
                    scaled = self.optimizer.scale_loss(loss)
                self.optimizer.apply(tape.gradient(scaled, self.trainable_variables), self.trainable_variables)
                return number + 1, total + loss

            return {"loss": tf.while_loop(lambda number, _: number < ITERATIONS, body, (0, 0.0))[1]}

    return SeveralUpdates


def layers_of(kind: str) -> list[Any]:
    from keras import layers

    return {
        "lstm": lambda: [layers.LSTM(16)],
        "gru": lambda: [layers.GRU(16)],
        "stacked": lambda: [layers.Bidirectional(layers.LSTM(8, return_sequences=True)), layers.GRU(8)],
        "unrolled": lambda: [layers.LSTM(8, unroll=True)],
        "loop in a layer": lambda: [layers.Flatten(), layers.Dense(32), loop_layer()],
        "loop in train_step": lambda: [layers.Flatten(), layers.Dense(16)],
    }[kind]()


def taken(kind: str, policy: str, folder: Path, **marker: int) -> Traced:
    """Trains a small model and traces some steps, each marked with `marker`; without any, no step is marked."""
    import keras
    import numpy as np
    import tensorflow as tf

    keras.config.set_dtype_policy(policy)
    try:
        inputs = x = keras.Input((LENGTH, 8))
        for layer in layers_of(kind):
            x = layer(x)
        model_class = looping_model() if kind == "loop in train_step" else keras.Model
        model = model_class(inputs, keras.layers.Dense(1, dtype="float32", name="head")(x))
        model.compile("sgd", "mse", jit_compile=False)
    finally:
        keras.config.set_dtype_policy("float32")
    batch = np.ones((16, LENGTH, 8), "float32"), np.ones((16, 1), "float32")
    iterator = iter(tf.data.Dataset.from_tensors(batch).repeat())
    model.make_train_function()
    for _ in range(2):
        model.train_function(iterator)
    times_ns = []  # by the system clock, as the trace: something may set this clock while a step runs
    tf.profiler.experimental.start(str(folder))
    for number in range(MARKED):
        before = time.time_ns()
        if marker:
            with tf.profiler.experimental.Trace("train", step_num=number, **marker):
                started = time.time_ns()
                model.train_function(iterator)
                ended = time.time_ns()
        else:
            started = time.time_ns()
            model.train_function(iterator)
            ended = time.time_ns()
        times_ns.append((ended - started, time.time_ns() - before))
    tf.profiler.experimental.stop()
    inside, outside = zip(*times_ns, strict=True)
    trace = read_trace(folder, graph_dtypes(model.train_function, iterator))
    return Traced(trace, tuple(value / 1e6 for value in inside), tuple(value / 1e6 for value in outside))


# By case: kind of model, policy, what the names of products in its loop contain, and how often each runs in a step.
CASES: dict[str, tuple[str, str, str, int]] = {
    "lstm, float32": ("lstm", "float32", "/while/body/", LENGTH),
    "lstm, bfloat16": ("lstm", "mixed_bfloat16", "/while/body/", LENGTH),
    "lstm, float16": ("lstm", "mixed_float16", "/while/body/", LENGTH),
    "gru, bfloat16": ("gru", "mixed_bfloat16", "/while/body/", LENGTH),
    "gru, float16": ("gru", "mixed_float16", "/while/body/", LENGTH),
    "bidirectional and stacked": ("stacked", "mixed_bfloat16", "/while/body/", LENGTH),
    "unrolled": ("unrolled", "mixed_bfloat16", "/lstm", 1),
    "loop in a layer": ("loop in a layer", "mixed_bfloat16", "/while/body/", ITERATIONS),
    "loop in train_step": ("loop in train_step", "mixed_float16", "/while/body/", ITERATIONS),
}


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Traced]:
    kind, policy, _, _ = CASES[request.param]
    return request.param, taken(kind, policy, tmp_path_factory.mktemp("trace"), _r=1)


def assert_by_the_clock(traced: Traced) -> None:
    """The kept steps are the marked ones but the first and the last, and each takes as long as the clock says."""
    for step_ms, least, most in zip(
        traced.trace.step_time_ms, traced.inside_ms[1:-1], traced.outside_ms[1:-1], strict=True
    ):
        assert 0.99 * least - 0.01 <= step_ms <= 1.01 * most + 0.01


def test_steps_have_their_times_and_parts(case: tuple[str, Traced]) -> None:
    _, traced = case
    trace = traced.trace
    assert (len(trace.steps), trace.marked_steps) == (MARKED - 2, MARKED)
    assert_by_the_clock(traced)
    for step in trace.steps:
        assert set(step.parts()) == PARTS
        assert sum(step.parts().values()) == pytest.approx(step.step_time_ms, rel=1e-3)
    metrics = trace.metrics()
    assert metrics["profiler/host_compute_ms"] > 0
    assert metrics["profiler/input_ms"] > 0
    assert not [warning for warning in trace.warnings if "step" in warning]


def test_operations_in_loops_have_times_and_types(case: tuple[str, Traced]) -> None:
    name, traced = case
    _, policy, part, runs = CASES[name]
    in_loop = [row for row in traced.matrix_products(part) if "head" not in row.name]
    assert in_loop
    assert {row.occurrences for row in in_loop} == {runs * MARKED}
    assert {row.dtype for row in in_loop} == {COMPUTE[policy]}
    assert {row.dtype for row in traced.matrix_products("head")} == {"float32"}
    lists = [row for row in traced.trace.operations if row.type in {"TensorListPushBack", "TensorListPopBack"}]
    assert None not in {row.dtype for row in lists}


def test_time_in_loops_counts_in_the_shares(case: tuple[str, Traced]) -> None:
    name, traced = case
    _, policy, part, _ = CASES[name]
    trace, metrics = traced.trace, traced.trace.metrics()
    known_us = sum(row.self_time_us for row in trace.compute if row.dtype)
    in_loop_us = sum(row.self_time_us for row in traced.matrix_products(part))
    assert metrics["profiler/matrix_percent"] >= 99.9 * in_loop_us / known_us
    share, sixteen_us = metrics["profiler/compute_16bit_percent"], 0.0
    if policy != "float32":
        sixteen_us = sum(row.self_time_us for row in traced.matrix_products(part) if row.dtype == COMPUTE[policy])
        assert sixteen_us > 0
    assert share >= 99.9 * sixteen_us / known_us
    assert (share > 0) == (sixteen_us > 0)


def test_markers_that_xprof_does_not_take_give_step_times_without_parts(tmp_path: Path) -> None:
    """Without `_r` xprof sees no marker."""
    traced = taken("lstm", "mixed_bfloat16", tmp_path, ignored=1)
    trace = traced.trace
    assert (len(trace.steps), trace.marked_steps) == (MARKED - 2, MARKED)
    assert_by_the_clock(traced)
    assert all(step.parts() == {} for step in trace.steps)
    names = {name for name in trace.metrics() if name.endswith("_ms")}
    assert names == {"profiler/step_time_ms"}
    assert trace.metrics()["profiler/compute_16bit_percent"] > 0
    (warning,) = (warning for warning in trace.warnings if "step" in warning)
    assert "so the breakdown is absent, and step times are those of the markers" in warning


def test_without_markers_there_are_no_steps_and_one_warning(tmp_path: Path) -> None:
    trace = taken("loop in a layer", "float32", tmp_path).trace
    assert (trace.steps, trace.marked_steps) == ((), 0)
    assert not [name for name in trace.metrics() if name.endswith("_ms")]
    (warning,) = (warning for warning in trace.warnings if "step" in warning)
    assert warning.startswith("the trace has no step markers")


@pytest.mark.parametrize("devices", [1, 2])
def test_steps_of_a_gpu_are_the_marked_ones(xspaces: ModuleType, save: Callable[..., Path], devices: int) -> None:
    """Each step launches its kernels from three iterations of a loop."""
    kernels = [xspaces.Kernel("ampere_sgemm_128x64_tn", 300), xspaces.Kernel("loop_fusion_1", 100)]
    space = xspaces.gpu_space(kernels, gap_us=20, devices=devices)
    expected = read_trace(save(space, "without"))
    for step in range(4):
        for number in range(3):
            at_us = step * 640 + 1 + 20 * number
            space.event(xspaces.HOST, "python", "ExecutorState::Process", at_us, 18, id=7 + step, iter_num=number)
    path = save(space, "with")
    assert without_loops(parse(path)) is not None
    trace = read_trace(path)
    assert [step.step_time_ms for step in trace.steps] == [pytest.approx(0.42)] * 4
    assert (trace.steps, trace.operations, trace.kernels) == (expected.steps, expected.operations, expected.kernels)


def test_a_trace_without_loops_or_markers_is_read_as_it_is(xspaces: ModuleType, save: Callable[..., Path]) -> None:
    marked, unmarked = (xspaces.gpu_space([xspaces.Kernel("k", 300)], markers=markers) for markers in (True, False))
    unmarked.event(xspaces.HOST, "python", "ExecutorState::Process", 1, 18, id=7, iter_num=2)
    assert without_loops(parse(save(marked, "marked"))) is None
    assert without_loops(parse(save(unmarked, "unmarked"))) is None
