"""Tasks of one's own are measured as images are: several inputs, weights files, their own scores."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from halfstep.errors import ProfileError
from halfstep.params.schema import ModelParams, ProfileParams, TaskParams, TrainParams, Variant
from halfstep.profile import max_batch
from halfstep.profile.max_batch import largest_batch
from halfstep.profile.records import Measurement
from halfstep.profile.repeats import Repeats
from halfstep.profile.runner import MeasurementContext, measure
from halfstep.system import files
from halfstep.tasks.trial import Trial
from tests.tasks.conftest import Own, prepare_task, with_weights
from tests.tasks.conftest import own as own

TRAIN = TrainParams(batch_size=8, epochs=1)
PROTOCOL = ProfileParams(
    processes=2,
    rounds=2,
    steps_per_round=2,
    warmup_steps=2,
    trace_steps=2,
    inference_batch_sizes=(1, 50),
    inference_calls_per_round=2,
)
TWO_INPUTS = """
class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden, self.out = keras.layers.Dense(8), keras.layers.Dense(1, activation="sigmoid", dtype="float32")

    def call(self, inputs):
        return {"p": self.out(self.hidden(inputs["a"]) + self.hidden(inputs["b"]))}


def build(*, batch_size, seed):
    model, x = Net(), {"a": X, "b": X}
    model({"a": X[:1], "b": X[:1]})
    data = tf.data.Dataset.from_tensor_slices((x, {"p": Y})).shuffle(40, seed=seed).batch(9)  # the last is smaller
    return changed(
        model=model, compile={"optimizer": "sgd", "loss": {"p": "mse"}}, train=data, validation=None,
        test=(x, {"p": Y}), score=lambda y, p: -np.abs(y["p"] - p["p"])[:, 0], score_name="neg_absolute_error",
    )
"""


def configs(task: TaskParams) -> dict[str, Trial]:
    prepared = files.PREPARED.absolute()
    arm_configs = {
        policy: Trial(task, ModelParams(), TRAIN, Variant(policy=policy), 0, directory=prepared)
        for policy in ("float32", "mixed_bfloat16")
    }
    return arm_configs | {files.CONTROL: arm_configs["float32"]}


def run(task: TaskParams, folder: Path, trained: dict[int, Path]) -> Measurement:
    asked = dict.fromkeys(("target_precision", "max_seconds", "processes", "rounds", "min_speedup"), 1.0)
    return measure(
        configs(task), "float32", PROTOCOL, MeasurementContext(trained=trained), Repeats(folder / "k", asked)
    )


def test_largest_batch_of_a_task_whose_data_decide_about_the_size(own: Own, monkeypatch: pytest.MonkeyPatch) -> None:
    """The data are 40 examples in batches of 9, of two numbers each: any size fits, if their batches are resized."""
    task = own(TWO_INPUTS)
    prepare_task(task, TRAIN, files.PREPARED)
    monkeypatch.setattr(max_batch, "LARGEST", 64)
    largest = largest_batch(configs(task)["float32"], ProfileParams(memory_limit_mib=2048), "CPU")
    assert [one.batch_size for one in largest.tried if one.examples_per_s] == [8, 16, 32, 64]
    assert largest.batch_size == 64


@pytest.mark.slow
def test_subclassed_model_with_two_inputs_is_measured(own: Own, tmp_path: Path) -> None:
    task = own(TWO_INPUTS)
    prepare_task(task, TRAIN, files.PREPARED)
    trained = tmp_path / "trained"
    result = with_weights(configs(task)["float32"], trained)
    assert result.outputs is not None

    measurement = run(task, tmp_path, {0: trained})
    record = measurement.records["mixed_bfloat16"]
    configuration = record.settings.configuration
    assert (configuration.optimizer, configuration.input_shape) == ("sgd", None)
    assert (record.settings.in_force.input_threads, record.settings.in_force.learning_rate) == (None, None)
    assert {call.batch_size for call in record.times.calls} == {1, 50}
    scores = np.load(record.same_weights[0])
    assert scores.shape == (40,)
    np.testing.assert_allclose(scores, result.outputs, atol=0.02)
    assert record.trace is not None
    assert any("bfloat16" in dtype for dtype in record.trace.graph_dtypes.values())


def test_error_in_the_users_code_names_the_task(own: Own, tmp_path: Path) -> None:
    task = own("def build(*, batch_size, seed):\n    return changed()\n")
    prepare_task(task, TRAIN, files.PREPARED)
    module = Path(f"{task.name.partition(':')[0]}.py")
    module.write_text(module.read_text() + "\n\ndef build(*, batch_size, seed):\n    raise RuntimeError('gone')\n")
    with pytest.raises(ProfileError, match=rf"task\.name = {task.name} cannot be built( under mixed_bfloat16)?: gone"):
        run(task, tmp_path, {})
