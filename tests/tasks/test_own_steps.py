"""Tasks with a step of their own, inputs alone, class weights and callbacks; and all that is wrong in one message."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from halfstep.errors import TaskError
from halfstep.params.schema import ModelParams, TaskParams, TrainParams, Variant
from halfstep.profile.worker import Worker
from halfstep.system import files
from halfstep.tasks import building
from halfstep.tasks.trial import Trial
from halfstep.train.training import train
from tests.tasks.conftest import Own, prepare_task, tried
from tests.tasks.conftest import own as own

TRAIN = TrainParams(batch_size=8, epochs=2)
SPEED = TrainParams(batch_size=8, epochs=0)
FLOAT32 = Variant(policy="float32")
GAN = """
class Gan(keras.Model):
    def __init__(self):
        super().__init__()
        self.generator = keras.Sequential([keras.layers.Dense(8), keras.layers.Dense(4, dtype="float32")])
        self.critic = keras.Sequential([keras.layers.Dense(8), keras.layers.Dense(1, dtype="float32")])

    def compile(self, optimizer, loss_fn):
        super().compile()
        self.own_optimizer, self.loss_fn = optimizer, loss_fn
        self.mean_loss = keras.metrics.Mean(name="loss")

    @property
    def metrics(self):
        return [self.mean_loss]

    def train_step(self, x):
        with tf.GradientTape() as tape:
            scores = self.critic(self.generator(x[0] if isinstance(x, tuple) else x))
            loss = self.loss_fn(tf.ones_like(scores), scores)
        weights = self.generator.trainable_variables + self.critic.trainable_variables
        self.own_optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        self.mean_loss.update_state(loss)
        return {"loss": self.mean_loss.result()}


def gan(**changes):
    compiled = {"optimizer": keras.optimizers.Adam(), "loss_fn": keras.losses.MeanSquaredError()}
    return Task(model=Gan(), compile=compiled, train=X, **changes)


def build(*, batch_size, seed):
    model = gan()
    model.model.generator.build((None, 4))
    model.model.critic.build((None, 4))
    return model
"""


def trial(task: TaskParams, settings: TrainParams, variant: Variant = FLOAT32) -> Trial:
    return Trial(task, ModelParams(), settings, variant, 0, directory=files.PREPARED)


def test_model_with_a_step_of_its_own_needs_no_call_and_no_targets_for_speed_only(own: Own) -> None:
    task = own(GAN)
    info = prepare_task(task, SPEED, files.PREPARED)
    assert (info.can_infer, info.score_name, info.speed_only) == (False, "none", "train.epochs is 0")
    ready_task = building.ready(trial(task, SPEED, Variant(policy="mixed_bfloat16", xla=True)))
    assert ready_task.model.jit_compile
    assert ready_task.inputs(3).shape == (3, 4)
    assert ready_task.training.steps_per_epoch == 5


def test_only_float16_is_left_out_where_the_loss_is_not_scaled(own: Own) -> None:
    task = own(GAN)
    tried(trial(task, SPEED, Variant(policy="mixed_bfloat16")))
    with pytest.raises(TaskError, match="does not scale its loss"):
        tried(trial(task, SPEED, Variant(policy="mixed_float16")))


def test_model_without_call_cannot_be_tested(own: Own) -> None:
    code = GAN.replace("model = gan()", "model = gan(test=(X, Y), score=right, score_name='accuracy')")
    with pytest.raises(TaskError, match=r"Task\.model has no call\(\), which the test needs; write one, or set train"):
        prepare_task(own(code), TRAIN, files.PREPARED)


def test_model_without_call_and_test_data_is_compared_for_speed(own: Own) -> None:
    code = GAN.replace("model = gan()", "model = gan(test=(X, Y), metric=lambda y, p: 1.0, score_name='accuracy')")
    task = own(code)
    info = prepare_task(task, SPEED, files.PREPARED)
    assert (info.can_infer, info.speed_only) == (False, "train.epochs is 0")
    tried(trial(task, SPEED, Variant(policy="mixed_bfloat16")))


UNBUILT = """
class Own(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1, dtype="float32")

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=y, y_pred=self(x, training=True))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


def build(*, batch_size, seed):
    return changed(model=Own(), compile={"optimizer": "adam", "loss": "mse"})
"""


def test_unbuilt_model_with_a_step_of_its_own_is_built(own: Own) -> None:
    task = own(UNBUILT)
    info = prepare_task(task, TRAIN, files.PREPARED)
    assert (info.can_infer, info.speed_only) == (True, None)
    assert building.ready(trial(task, TRAIN)).model.built


def test_score_and_test_are_not_asked_for_without_a_training(own: Own) -> None:
    task = own("def build(*, batch_size, seed):\n    return changed(test=None, score=None, score_name=None)\n")
    assert prepare_task(task, SPEED, files.PREPARED).speed_only == "train.epochs is 0"
    with pytest.raises(TaskError) as caught:
        prepare_task(task, TRAIN, files.PREPARED)
    message = str(caught.value)
    assert "Task has neither score nor metric" in message
    assert "Task.score_name is None" in message
    assert "Task.test is None" in message


def test_all_that_is_wrong_is_in_one_message(own: Own) -> None:
    task = own(
        "def build(*, batch_size, seed):\n    return changed(model=3, compile={'jit_compile': True}, score_name='mae', "
        "train=batches().repeat(), validation=7)\n"
    )
    with pytest.raises(TaskError) as caught:
        prepare_task(task, TRAIN, files.PREPARED)
    message = str(caught.value)
    for part in (
        "Task.model is int",
        "contains jit_compile",
        "'neg_mae'",
        "Task.train is endless",
        "validation is int",
    ):
        assert part in message


def test_class_weights_weigh_training_and_timing_as_fit_does(own: Own) -> None:
    task = own("def build(*, batch_size, seed):\n    return changed(class_weight={0: 1.0, 1: 3.0})\n")
    prepare_task(task, TRAIN, files.PREPARED)
    _, y, weights = next(iter(building.ready(trial(task, TRAIN)).training.from_step(0, 1)))
    np.testing.assert_array_equal(np.ravel(weights), np.where(np.ravel(y) > 0, 3.0, 1.0))


def test_class_weights_of_no_class_are_refused(own: Own) -> None:
    task = own("def build(*, batch_size, seed):\n    return changed(class_weight={'a': 3.0})\n")
    with pytest.raises(TaskError, match=r"Task\.class_weight cannot be used"):
        prepare_task(task, TRAIN, files.PREPARED)


def test_callbacks_of_the_task_stop_the_training_and_write_below_their_own_folder(own: Own, tmp_path: Path) -> None:
    (tmp_path / "best.keras").write_text("theirs")
    task = own(
        "def build(*, batch_size, seed):\n    stop = keras.callbacks.EarlyStopping('loss', min_delta=100, patience=1)\n"
        "    return changed(callbacks=[stop, keras.callbacks.ModelCheckpoint('best.keras')])\n"
    )
    assert prepare_task(task, TRAIN, files.PREPARED).restarts
    trained = train(trial(task, TRAIN.model_copy(update={"epochs": 9})), folder=tmp_path / "written")
    assert len(trained.epochs) == 2
    assert (tmp_path / "written" / "best.keras").is_file()
    assert (tmp_path / "best.keras").read_text() == "theirs"


def test_shapes_are_in_the_message_of_a_score_that_fails(own: Own) -> None:
    task = own("def build(*, batch_size, seed):\n    return changed(score=lambda y, p: y @ p)\n")
    shapes = r"fails for y_true of shape \(30, 1\) and y_pred of shape \(30, 1\): "
    with pytest.raises(TaskError, match=shapes):
        prepare_task(task, TRAIN, files.PREPARED)


def test_steps_of_one_call_are_timed_one_by_one(own: Own, capsys: pytest.CaptureFixture[str]) -> None:
    task = own(
        "def build(*, batch_size, seed):\n    compiled = options()['compile'] | {'steps_per_execution': 5}\n"
        "    return changed(compile=compiled)\n"
    )
    prepare_task(task, TRAIN, files.PREPARED)
    assert capsys.readouterr().out == f"prepare: {task.name}: timed with one step a call, not with 5\n"
    worker = Worker(trial(task, TRAIN))
    worker.warm_up(1)
    before = int(worker._model.optimizer.iterations)
    worker.train_round(4)
    assert int(worker._model.optimizer.iterations) == before + 4


SHARED = {
    "model": ("MODEL = network()\n", "model=MODEL", r"returns the same Task\.model in every call; create it inside"),
    "data": (
        "DATA = batches().shuffle(40, seed=1)\n",
        "train=DATA",
        r"returns the same Task\.train in every call, with other data each time; create it inside the function",
    ),
}


@pytest.mark.parametrize("name", SHARED)
def test_what_is_made_at_import_and_changes_is_named(own: Own, name: str) -> None:
    made, change, message = SHARED[name]
    task = own(f"{made}\n\ndef build(*, batch_size, seed):\n    return changed({change})\n")
    with pytest.raises(TaskError, match=message):
        prepare_task(task, TRAIN, files.PREPARED)


def test_data_set_without_an_order_of_its_own_may_be_made_at_import(own: Own) -> None:
    task = own("DATA = batches()\n\n\ndef build(*, batch_size, seed):\n    return changed(train=DATA)\n")
    assert prepare_task(task, TRAIN, files.PREPARED).examples == 30
