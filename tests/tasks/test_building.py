"""Tasks of one's own: built, compiled, tested, and refused."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from halfstep.errors import HalfstepError, PrecisionError, TaskError
from halfstep.params.schema import ModelParams, TaskParams, TrainParams, Variant
from halfstep.prepare import trying
from halfstep.results.prepared import TEST_CLASSES
from halfstep.results.task import TASK_INFO, TaskInfo
from halfstep.system import files
from halfstep.tasks import building, precision
from halfstep.tasks.ready import ReadyTask
from halfstep.tasks.scoring import NotFiniteError
from halfstep.tasks.trial import Trial
from tests.tasks import conftest
from tests.tasks.conftest import Own, prepare_task

TRAIN = TrainParams(batch_size=8, epochs=2)


def prepared(task: TaskParams) -> TaskInfo:
    return prepare_task(task, TRAIN, files.PREPARED)


def ready(task: TaskParams, policy: str = "float32", seed: int = 0) -> ReadyTask:
    variant = Variant(policy=policy)
    return building.ready(Trial(task, ModelParams(), TRAIN, variant, seed))


def tried(task: TaskParams, policy: str) -> trying.Inspection:
    return conftest.tried(Trial(task, ModelParams(), TRAIN, Variant(policy=policy), 0))


def test_prepare_describes_the_task(own: Own) -> None:
    task = own()
    info = prepared(task)
    assert info == TaskInfo.read(files.PREPARED / TASK_INFO.name)
    assert (info.score_name, info.score_kind, info.examples, info.steps_per_epoch) == ("accuracy", "score", 30, 5)
    assert set(files.read_manifest(files.PREPARED)) == {TASK_INFO.name, TEST_CLASSES}
    x = np.random.default_rng(0).normal(size=(40, 4)).astype("float32")
    assert np.load(files.PREPARED / TEST_CLASSES).tolist() == (x.sum(axis=1) > 0)[:30].tolist()


def test_own_prepare_fills_the_folder_that_the_task_reads(own: Own) -> None:
    task = own(
        "def prepare(directory, factor):\n    (directory / 'x.txt').write_text(str(factor))\n\n\n"
        "def build(*, batch_size, seed, factor, directory):\n"
        "    assert (directory / 'x.txt').read_text() == '3'\n    return Task(**options())\n",
        arguments={"factor": 3},
    )
    prepared(task)
    assert "x.txt" in files.read_manifest(files.PREPARED)
    assert ready(task).model.compiled


@pytest.mark.parametrize("policy", ["float32", "mixed_float16", "mixed_bfloat16"])
def test_task_is_compiled_under_the_variant(own: Own, policy: str) -> None:
    task = own()
    prepared(task)
    ready_task = ready(task, policy)
    assert ready_task.model.dtype_policy.name == policy
    assert isinstance(ready_task.model.optimizer, keras.optimizers.LossScaleOptimizer) == (policy == "mixed_float16")
    scores = ready_task.outputs(ready_task.model.predict_on_batch)
    assert scores.shape == (30,)
    assert scores.dtype == np.float64
    assert set(scores) <= {0.0, 1.0}
    assert ready_task.test_metrics(scores) == {"test_accuracy": scores.mean()}


def test_initial_weights_depend_on_the_seed_alone(own: Own) -> None:
    task = own()
    prepared(task)
    first, again, other = (
        ready(task, policy, seed).model.get_weights()
        for policy, seed in (("float32", 0), ("mixed_bfloat16", 0), ("float32", 1))
    )
    for a, b in zip(first, again, strict=True):
        np.testing.assert_array_equal(a, b)
    assert any(not np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def test_metric_has_replicates(own: Own) -> None:
    task = own(
        "def fit(y, p):\n    return 1 - float(((y - p) ** 2).sum() / ((y - 0.5) ** 2).sum())\n\n\n"
        "def build(*, batch_size, seed):\n    return changed(score=None, metric=fit, score_name='fit')\n"
    )
    assert prepared(task).score_kind == "metric"
    ready_task = ready(task)
    outputs = ready_task.outputs(ready_task.model.predict_on_batch)
    assert outputs.ndim == 1
    assert len(outputs) > 30
    assert ready_task.test_metrics(outputs) == {"test_fit": outputs[0]}


def test_predictions_that_are_not_finite_are_a_result(own: Own) -> None:
    task = own()
    prepared(task)
    ready_task = ready(task)
    overflow = lambda inputs: np.where(np.arange(len(inputs))[:, None] == 1, np.inf, 0.2)  # noqa: E731
    with pytest.raises(NotFiniteError):
        ready_task.outputs(overflow)
    scores = ready_task.outputs(overflow, allow_not_finite=True)
    assert np.isnan(scores).sum() == 1


# By name: the body of the task's function, and the message.
BAD_TASKS = {
    "raises": ("raise RuntimeError('no data')", r"cannot be built: no data \(own_.*, line"),
    "exits": ("sys.exit(3)", r"cannot be built: it raised SystemExit\(3\)"),
    "other type": ("return 3", r"returned int; it must return a halfstep\.tasks\.Task"),
    "no model": ("return changed(model=3)", "Task.model is int; it must be a keras.Model"),
    "compiled": (
        "m = network(); m.compile('adam', 'mse'); return changed(model=m)",
        r"Task.model is compiled; remove compile\(\), and give its arguments as Task\.compile",
    ),
    "not built": (
        "return changed(model=keras.Sequential([keras.layers.Dense(1)]))",
        "Task.model is not built; start it with keras.Input",
    ),
    "frozen": (
        "m = network(); m.trainable = False; return changed(model=m)",
        "Task.model has no trainable weights; call it on a batch",
    ),
    "policy": (
        "keras.config.set_dtype_policy('float16'); return changed()",
        r"changed the dtype policy \(keras.config.dtype_policy\) from float32 to float16; remove that call",
    ),
    "other data": (
        "return changed(train=(np.random.default_rng().normal(size=(40, 4)), Y))",
        r"gives other data in Task\.train when it is built again with the same seed",
    ),
    "shuffled test": (
        "return changed(test=batches().shuffle(5, seed=seed))",
        r"gives Task\.test in another order when it is read again; do not shuffle it",
    ),
    "endless": ("return changed(train=batches().repeat())", r"Task\.train is endless"),
    "empty": ("return changed(train=batches().take(0))", r"Task\.train is empty"),
    "empty validation": ("return changed(validation=batches().take(0))", r"Task\.validation is empty"),
    "test without targets": ("return changed(test=batches().map(lambda x, y: x))", r"each must be \(x, y\)"),
    "shape of the score": (
        "return changed(score=lambda y, p: y - p)",
        r"Task\.score \(accuracy\) returns shape \(30, 1\) for 30 examples",
    ),
    "mean score": (
        "return changed(score=lambda y, p: 1.0)",
        r"returns shape \(\) for 30 examples.*of all examples, Task\.metric",
    ),
    "score that is not finite": (
        "return changed(score=lambda y, p: np.log(0 * p[:, 0]))",
        "returns values that are not finite for finite predictions",
    ),
    "score raises": (
        "return changed(score=lambda y, p: p.nothing)",
        r"Task\.score \(accuracy\) fails for .* has no attribute 'nothing'",
    ),
    "unknown loss": ("return changed(compile={'optimizer': 'adam', 'loss': 'none_such'})", "cannot be trained: "),
    "lower is better": ("return changed(score_name='mae')", "name it 'neg_mae'"),
    "random weights": (
        "import os\nrandom = keras.initializers.Constant(int.from_bytes(os.urandom(2), 'big') / 65536)\n"
        "m = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, kernel_initializer=random)])\n"
        "return changed(model=m)",
        r"has other initial weights \(sequential",
    ),
    "another layer each second time": (
        "global BUILT\nBUILT = not globals().get('BUILT')\n"
        "last = [keras.layers.Dense(1)] if BUILT else []\n"
        "return changed(model=keras.Sequential([keras.Input((4,)), keras.layers.Dense(1), *last]))",
        "has a model with other weights when it is built again",
    ),
    "random score": (
        "import os\nreturn changed(score=lambda y, p: np.frombuffer(os.urandom(len(y)), 'uint8').astype(float))",
        "gives another score with the same weights",
    ),
    **{
        f"changed {name}": (f"{call}\nreturn changed()", re.escape(f"changed {setting}"))
        for name, setting, call in (
            ("floatx", "keras.config.floatx from float32 to float16", "keras.config.set_floatx('float16')"),
            (
                "image format",
                "keras.config.image_data_format from channels_last to channels_first",
                "keras.config.set_image_data_format('channels_first')",
            ),
            ("epsilon", "keras.config.epsilon from 1e-07 to 0.001", "keras.config.set_epsilon(1e-3)"),
            ("seed of Keras", "the seed (keras.utils.set_random_seed)", "keras.utils.set_random_seed(7)"),
            ("seed of TensorFlow", "the seed (tf.random.set_seed)", "tf.random.set_seed(7)"),
            ("eager execution", "eager execution", "tf.config.run_functions_eagerly(True)"),
            (
                "TensorFloat-32",
                "TensorFloat-32",
                "tf.config.experimental.enable_tensor_float_32_execution(False)",
            ),
        )
    },
    **{
        f"data raise {error}": (
            f"def data():\n    yield X, Y\n    {error}\nreturn changed(train=generated(data))",
            rf"{said} \(own_.*\.py, line 5\d",
        )
        for error, said in {
            "np.load('gone.npy')": r"FileNotFoundError: \[Errno 2\] No such file or directory: 'gone.npy'",
            "raise ValueError('no such picture')": "ValueError: no such picture",
            "raise SystemExit('no more')": "SystemExit: no more",
            "raise KeyboardInterrupt('no more')": "KeyboardInterrupt: no more",
            "raise StopIteration('no more')": "RuntimeError: generator raised StopIteration",
            "raise MemoryError('no more')": "MemoryError: no more",
        }.items()
    },
    **{
        f"{split} calls a function that raises {error}": (
            f"def lost(x): {error}\n"
            f"of = lambda x, y: (tf.ensure_shape(tf.{function}(lost, [x], tf.float32), (8, 4)), y)\n"
            f"return changed({split}=batches().map(of))",
            rf"{said} \(own_.*\.py, line 5\d",
        )
        for split, function, error, said in (
            ("train", "numpy_function", "return {}['label']", "KeyError: 'label'"),
            ("train", "numpy_function", "sys.exit(3)", "SystemExit: 3"),
            ("validation", "py_function", "raise ValueError('no such sound')", "ValueError: no such sound"),
        )
    },
    "PyDataset that raises": (
        "class Rows(keras.utils.PyDataset):\n    def __len__(self): return 4\n"
        "    def __getitem__(self, index): raise ValueError('no such row')\nreturn changed(train=Rows())",
        r"no such row \(own_.*\.py, line 5",
    ),
    **{
        f"{name} that raises": (
            "def wrong(y, p): raise ValueError('not possible')\n"
            f"return changed(compile={{'loss': 'mse', 'optimizer': 'sgd'}} | {{'{name}': {given}}})",
            r"not possible \(own_.*\.py, line 5",
        )
        for name, given in (("loss", "wrong"), ("metrics", "[wrong]"))
    },
}
GENERATED = """

def generated(rows):
    spec = tf.TensorSpec((None, 4), tf.float32), tf.TensorSpec((None, 1), tf.float32)
    return tf.data.Dataset.from_generator(rows, output_signature=spec)

"""


@pytest.fixture
def restored_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets each setting to what it is; `monkeypatch` does so again at the end, whatever it has become."""

    class Settings:
        floatx = property(lambda _: keras.config.floatx(), lambda _, value: keras.config.set_floatx(value))
        epsilon = property(lambda _: keras.config.epsilon(), lambda _, value: keras.config.set_epsilon(value))
        layout = property(
            lambda _: keras.config.image_data_format(), lambda _, value: keras.config.set_image_data_format(value)
        )
        eager = property(
            lambda _: tf.config.functions_run_eagerly(), lambda _, value: tf.config.run_functions_eagerly(value)
        )

    settings = Settings()
    for name in ("floatx", "epsilon", "layout", "eager"):
        monkeypatch.setattr(settings, name, getattr(settings, name))


@pytest.mark.usefixtures("restored_settings")
@pytest.mark.parametrize("name", BAD_TASKS)
def test_task_that_cannot_be_used_is_refused_before_any_training(own: Own, name: str) -> None:
    body, message = BAD_TASKS[name]
    with pytest.raises(TaskError, match=message) as caught:
        prepared(own(f"{GENERATED}\ndef build(*, batch_size, seed):\n{textwrap.indent(body, '    ')}\n"))
    assert "\n" not in str(caught.value)
    assert not (files.PREPARED / TASK_INFO.name).exists()


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def build(*, batch_size, seed, width):\n    return changed()\n", "cannot be called with batch_size=, seed="),
        ("def prepare(directory):\n    1 / 0\n", r"prepare failed: division by zero \(own_"),
        ("build = 3\n", "build is int; it must be a function"),
        ("del build\n", "the module does not define build"),
    ],
)
def test_function_that_cannot_be_called_is_refused(own: Own, code: str, message: str) -> None:
    with pytest.raises(TaskError, match=message):
        prepared(own(code))


def test_task_with_another_precision_is_refused(own: Own) -> None:
    task = own(
        "def build(*, batch_size, seed):\n    keras_policy = keras.config.dtype_policy()\n"
        "    m = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, dtype='float32')])\n"
        "    return Task(**(options() | {'model': m}))\n"
    )
    prepared(task)
    with pytest.raises(PrecisionError, match="nothing is computed in bfloat16: layers compute in float32: sequential"):
        tried(task, "mixed_bfloat16")


def test_optimizer_that_is_wrapped_by_hand_scales_where_the_policy_does(own: Own) -> None:
    wrapped = "keras.mixed_precision.LossScaleOptimizer(keras.optimizers.SGD(0.5), initial_scale=64.0)"
    code = f"changed(compile={{'optimizer': {wrapped}, 'loss': 'binary_crossentropy'}})"
    task = own(f"def build(*, batch_size, seed):\n    return {code}\n")
    prepared(task)
    for policy, scale in (("float32", None), ("mixed_bfloat16", None), ("mixed_float16", 64.0)):
        model = ready(task, policy).model
        assert precision.loss_scale(model) == scale
        optimizer = model.optimizer if scale is None else model.optimizer.inner_optimizer
        assert isinstance(optimizer, keras.optimizers.SGD)
        assert float(optimizer.learning_rate) == 0.5
        model.fit(np.zeros((2, 4)), np.zeros((2, 1)), verbose=0)


def test_inputs_that_16_bits_round_are_named_once(own: Own) -> None:
    changes = "train=(np.round(X * 1e4), Y)"
    task = own(f"def build(*, batch_size, seed):\n    return changed({changes})\n")
    assert "rounds those above 256" in tried(task, "mixed_bfloat16").lines[0]
    assert tried(task, "float32").lines == ()


OWN_STEP = """
import tensorflow as tf


class Own(keras.Model):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=y, y_pred=self(x, training=True))
            scaled = {scaled}
        self.optimizer.apply(tape.gradient(scaled, self.trainable_variables), self.trainable_variables)
        return {{"loss": loss}}


def build(*, batch_size, seed):
    plain = network()
    return changed(model=Own(plain.inputs, plain.outputs), compile={{"optimizer": "adam", "loss": "mse"}})
"""


def test_train_step_that_does_not_scale_its_loss_is_named(own: Own) -> None:
    task = own(OWN_STEP.format(scaled="loss"))
    prepared(task)
    ready(task, "mixed_bfloat16")  # without loss scaling there is nothing to forget
    with pytest.raises(TaskError, match=r"the train_step of Own does not scale its loss"):
        ready(task, "mixed_float16")


def test_train_step_that_scales_its_loss_is_trained(own: Own) -> None:
    task = own(OWN_STEP.format(scaled="self.optimizer.scale_loss(loss)"))
    prepared(task)
    ready_task = ready(task, "mixed_float16")
    before = ready_task.model.get_weights()
    ready_task.model.fit(ready_task.training.from_step(0, 5), steps_per_epoch=5, verbose=0)
    assert any(not np.array_equal(a, b) for a, b in zip(before, ready_task.model.get_weights(), strict=True))


def test_module_may_lie_in_another_folder(own: Own, tmp_path: Path) -> None:
    task = own()
    module = task.name.partition(":")[0]
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    Path(f"{module}.py").rename(elsewhere / f"{module}.py")
    with pytest.raises(HalfstepError, match=f"No module named '{module}'"):
        prepared(task)
    assert prepared(task.model_copy(update={"path": str(elsewhere)})).examples == 30
