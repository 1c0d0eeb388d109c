"""A task of the user's own is tried under every variant: one that fails is left out, and the others go on."""

from __future__ import annotations

import pytest

from halfstep.errors import TaskError
from halfstep.params.schema import Params, TaskParams, TrainParams, Variant
from halfstep.prepare.trying import prepare_task
from halfstep.results.task import TASK_INFO, TaskInfo, left_out, resolved
from halfstep.system import files
from halfstep.system.fork_server import stop_servers
from tests.tasks.conftest import Own
from tests.tasks.conftest import own as own
from tests.tasks.test_own_steps import GAN

VARIANTS = {name: Variant(policy=name) for name in ("float32", "mixed_float16", "mixed_bfloat16")}
IN_TOP_K = """
def build(*, batch_size, seed):
    inputs = keras.Input((4,))
    outputs = keras.layers.Dense(3, activation="softmax")(inputs)
    compiled = {"loss": "sparse_categorical_crossentropy", "metrics": [top_2]}
    return changed(model=keras.Model(inputs, outputs), compile=compiled, score=lambda y, p: p[:, 0])


def top_2(y, p):
    return tf.math.in_top_k(tf.cast(tf.reshape(y, [-1]), tf.int32), p, 2)
"""
REFUSING = (
    IN_TOP_K.replace("keras.Input((4,))", "keras.Input((4,)); inner = sequence(inputs)").replace(
        '"softmax")(inputs)', '"softmax")(inner)'
    )
    + """

def sequence(inputs):
    in_float32 = lambda x: x * tf.ones((), tf.float32)
    wide = keras.layers.Dense(4, name="first")(inputs)
    return keras.layers.GRU(4, activation=in_float32)(keras.layers.Reshape((4, 1))(wide))
"""
)


def settings(task: TaskParams, epochs: int) -> Params:
    train = TrainParams(variants=tuple(VARIANTS), epochs=epochs, batch_size=8)
    return Params(task=task, train=train, variants=VARIANTS)


def test_variant_that_fails_is_left_out(own: Own, capfd: pytest.CaptureFixture[str]) -> None:
    params = settings(own(GAN), epochs=0)
    info = prepare_task(params, files.PREPARED)
    assert info == TaskInfo.read(files.PREPARED / TASK_INFO.name)
    assert list(info.left_out) == ["mixed_float16"]
    assert TASK_INFO.name in files.read_manifest(files.PREPARED)
    files.verify_manifest(files.PREPARED)
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("prepare: mixed_float16 is left out: task.name = ")
    assert line.endswith("compute them of `self.optimizer.scale_loss(loss)`")
    assert left_out("mixed_float16") == info.left_out["mixed_float16"]
    assert left_out("mixed_bfloat16") is None
    assert resolved(params).profile.inference_batch_sizes == ()


@pytest.mark.slow
def test_output_of_the_function_is_shown_once(own: Own, capfd: pytest.CaptureFixture[str]) -> None:
    code = "def build(*, batch_size, seed):\n    print('built'); import os; os.system('echo child'); return changed()\n"
    stop_servers()  # one that an earlier test has left would print where that test did
    prepare_task(settings(own(code), epochs=1), files.PREPARED)
    assert capfd.readouterr().out.split() == ["built", "child"]
    logs = [path.read_text() for path in (files.WORK_DIR / "task").iterdir()]
    assert len(logs) == 3
    assert all(sorted(text.split()) == ["built", "child"] for text in logs)


@pytest.mark.slow
def test_layers_that_refuse_16_bits_are_in_float32(own: Own, capfd: pytest.CaptureFixture[str]) -> None:
    """One fails when the model is built, and the output in a metric."""
    params = settings(own(REFUSING), epochs=1)
    info = prepare_task(params, files.PREPARED)
    assert info.left_out == {}
    assert info.refusals == dict.fromkeys(("mixed_float16", "mixed_bfloat16"), ("gru/gru_cell", "dense"))
    assert "prepare: mixed_bfloat16: gru/gru_cell fails in 16 bits; it is tried in float32" in capfd.readouterr().out
    in_force = resolved(params).variants
    assert in_force["mixed_bfloat16"].float32_layers == ("gru/gru_cell", "dense")
    assert in_force["float32"].float32_layers == ()


@pytest.mark.slow
def test_failure_of_a_type_has_its_cure(own: Own) -> None:
    """Without the only layer in 16 bits there is nothing to compare."""
    info = prepare_task(settings(own(IN_TOP_K), epochs=1), files.PREPARED)
    assert set(info.left_out) == {"mixed_float16", "mixed_bfloat16"}
    assert info.refusals == {}
    for reason in info.left_out.values():
        first, last = reason.split("; with dense in float32: ")
        assert first.endswith('needs dtype="float32", in plain Keras, too')
        assert "is not in force" in last


@pytest.mark.slow
def test_baseline_that_fails_ends_the_stage(own: Own) -> None:
    task = own("def build(*, batch_size, seed):\n    raise RuntimeError('gone')\n")
    with pytest.raises(TaskError, match=rf"task\.name = {task.name} cannot be built: gone"):
        prepare_task(settings(task, epochs=1), files.PREPARED)
    assert not (files.PREPARED / TASK_INFO.name).exists()
