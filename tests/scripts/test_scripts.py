"""A training script of somebody else, taken as it is: through the real stages."""

from __future__ import annotations

import csv
import json
import re
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from halfstep.inputs import digests
from halfstep.params import loading
from halfstep.results.prepared import TEST_CLASSES
from halfstep.system import sealing
from halfstep.tasks import examples
from tests.scripts.conftest import SOURCE, source

if TYPE_CHECKING:
    from tests.scripts.conftest import ScriptProject

pytestmark = pytest.mark.slow

BOTH = {"train": {"variants": ["float32", "mixed_bfloat16"]}}
CALLBACK = """
class Writes(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        Path(folder, "epoch").write_text("open")
        print("wrote", Path(folder, "epoch").read_text())
"""


def test_first_epoch_is_that_of_plain_python(project: ScriptProject) -> None:
    project.write(build=CALLBACK, fit="x, y, epochs=2, validation_split=0.25, callbacks=[Writes()], verbose=0")
    plain_loss = float(project.plain().split("history ")[1].split()[0])
    out = project.passed("prepare")
    assert "train.py: the call of fit in line" in out
    assert "replaces its seed (812), which stays as it is for seed 0 of train.seeds" in out
    info = project.json("data/prepared/task.json")
    assert (info["score_name"], info["examples"], info["steps_per_epoch"]) == ("accuracy", 40, 8)
    assert info["script"]["epochs"] == 2
    _, test = examples.halves(examples.read(project.root / "data/prepared"))
    classes = np.load(project.root / "data/prepared" / TEST_CLASSES)
    assert classes.tolist() == np.concatenate([batch.y for batch in test]).tolist()
    assert len(classes) == 40
    assert "ran out of data" not in project.passed("train", "--variant", "float32", "--seed", "0")
    metrics = project.json("data/train/float32-0/metrics.json")
    assert metrics["status"] == "finished"
    assert metrics["batch_size"] == 32
    with (project.root / "data/train/float32-0/history.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 2
    assert float(rows[0]["loss"]) == plain_loss


def test_what_a_script_tracks_by_itself_meets_no_store(project: ScriptProject) -> None:
    start = (
        "import mlflow\nmlflow.set_tracking_uri('sqlite:///own.db')\nmlflow.set_experiment('mine')\nmlflow.autolog()\n"
        "mlflow.start_run()\nmlflow.log_param('units', 64)\nprint('logs to', mlflow.get_tracking_uri())"
    )
    project.write(start=start)
    assert "replaces its tracking with MLflow: what it logs by itself is thrown away" in project.passed("prepare")
    assert project.train()["status"] == "finished"
    assert [path.name for path in project.script.parent.iterdir()] == ["train.py"]
    printed = (project.root / ".halfstep/script/float32-0.txt").read_text()
    store = re.search(r"logs to sqlite:///(\S*halfstep-mlflow-\S+)", printed)
    assert store is not None
    assert not Path(store[1]).parent.exists()
    with closing(sqlite3.connect(project.root / "mlflow.db")) as connection:
        assert connection.execute("SELECT DISTINCT status FROM runs").fetchall() == [("FINISHED",)]
        names = {name for (name,) in connection.execute("SELECT name FROM experiments")}
    assert names == {"Default", "mixed-precision"}


def test_callback_that_fails_under_a_candidate_alone_leaves_it_out(project: ScriptProject) -> None:
    """A checkpoint in HDF5 is written under loss scaling, too, as by plain Keras."""
    build = (
        "class Fragile(keras.callbacks.Callback):\n"
        "    def on_epoch_end(self, epoch, logs=None):\n"
        "        if self.model.dtype_policy.name == FAILS:\n"
        "            raise ValueError('no such type')\n"
        "callbacks = [keras.callbacks.ModelCheckpoint('best.h5'), Fragile()]"
    )
    fit = "x, y, epochs=1, validation_split=0.25, callbacks=callbacks"
    variants = {"train": {"variants": ["float32", "mixed_float16", "mixed_bfloat16"]}}
    project.write(variants, build=f"FAILS = 'mixed_bfloat16'\n{build}", fit=fit)
    project.passed("prepare")
    assert project.train("mixed_float16")["status"] == "finished"
    out = project.passed("train", "--variant", "mixed_bfloat16", "--seed", "0")
    assert "left out: task.script = " in out
    reason = project.json("data/train/mixed_bfloat16-0/metrics.json")["reason"]
    assert " under mixed_bfloat16 in its callback Fragile: no such type (train.py, line " in reason
    with closing(sqlite3.connect(project.root / "mlflow.db")) as connection:
        runs = connection.execute("SELECT status FROM runs WHERE name LIKE 'train%' ORDER BY start_time").fetchall()
    assert runs == [("FINISHED",), ("FAILED",)]
    project.write(variants, build=f"FAILS = 'float32'\n{build}", fit=fit)
    project.passed("prepare")
    done = project.run("train", "--variant", "float32", "--seed", "0")
    assert done.returncode == 1
    assert " cannot be trained in its callback Fragile: no such type (train.py, line " in done.stderr.splitlines()[-1]


def test_loss_scaling_of_the_script_itself_is_used_where_the_policy_asks_for_it(project: ScriptProject) -> None:
    wrapped = "keras.mixed_precision.LossScaleOptimizer(keras.optimizers.Adam(), initial_scale=64.0)"
    build = (
        f"model.compile = (lambda compile: lambda **given: compile(**given | dict(optimizer={wrapped})))(model.compile)"
    )
    project.write({"train": {"variants": ["float32", "mixed_float16"]}}, build=build)
    line = "its LossScaleOptimizer is used where the policy is mixed_float16, and nowhere else"
    assert line in project.passed("prepare")
    assert project.train().get("loss_scale") is None
    assert project.train("mixed_float16")["loss_scale"] == 64


def test_callbacks_write_elsewhere(project: ScriptProject) -> None:
    callbacks = (
        "callbacks = [keras.callbacks.ModelCheckpoint('best.keras'), keras.callbacks.CSVLogger('log.csv'), "
        "keras.callbacks.BackupAndRestore('backup')]\n"
        "Path('new.txt').write_text('created')"
    )
    project.write(build=callbacks, fit="x, y, epochs=2, validation_split=0.25, callbacks=callbacks")
    for name in ("best.keras", "log.csv"):
        (project.script.parent / name).write_text("precious")
    project.passed("prepare")
    project.train()
    assert sorted(path.name for path in project.script.parent.iterdir()) == ["best.keras", "log.csv", "train.py"]
    assert (project.root / sealing.WRITTEN / str(project.script.parent).lstrip("/") / "new.txt").is_file()
    assert {(project.script.parent / name).read_text() for name in ("best.keras", "log.csv")} == {"precious"}
    written = {path.name for path in (project.root / ".halfstep/script/float32-0").iterdir()}
    assert {"best.keras", "log.csv"} <= written


def test_script_does_what_it_does_for_its_user(project: ScriptProject) -> None:
    """It writes and removes, one process at a time, keeps a download in the temporary folder, and all is put back."""
    start = (
        "import os, tempfile, time\n"
        "assert not Path('runs').exists(), 'another process runs it'\nPath('runs').write_text('')\n"
        "Path('log.txt').write_text('new'); Path('scratch.txt').unlink(missing_ok=True)\n"
        "assert os.system('echo run >> ran.txt') == 0\n"
        f"cached = Path(tempfile.gettempdir(), {project.root.name!r})\n"
        "print('downloads', not cached.exists()); cached.write_text(''); time.sleep(0.5); Path('runs').unlink()"
    )
    amounts = {"processes": 2, "rounds": 1, "steps_per_round": 2, "warmup_steps": 1, "trace_steps": 2}
    project.write({"profile": amounts | {"inference_batch_sizes": []}}, start=start)
    for name in ("log.txt", "scratch.txt"):
        (project.script.parent / name).write_text("mine")
    for stage in ("environment", "prepare"):
        project.passed(stage)
    project.train()
    project.passed("profile")
    assert (project.script.parent / "log.txt").read_text() == "mine"
    assert (project.script.parent / "scratch.txt").read_text() == "mine"
    ran = (project.script.parent / "ran.txt").read_text().count("run")
    assert ran == 1 + 1 + 2 * 2
    printed = [path.read_text() for path in (project.root / ".halfstep/script").glob("*.txt")]
    assert sum("downloads True" in text for text in printed) == 0  # the first one, in prepare, ran again in train
    Path(tempfile.gettempdir(), project.root.name).unlink()


def test_strategy_of_one_device_is_what_the_device_does(project: ScriptProject) -> None:
    clone = "with strategy.scope():\n    model = keras.models.clone_model(model)"
    build = f"strategy = tf.distribute.MirroredStrategy()\n{clone}"
    fit = "x, y, epochs=2, validation_split=0.25, batch_size=32 * strategy.num_replicas_in_sync"
    project.write(build=build, fit=fit)
    assert "replaces its strategy by that of one device" in project.passed("prepare")
    assert project.train()["status"] == "finished"


LOOP = """
import pathlib, keras, numpy as np, tensorflow as tf

model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
optimizer = keras.optimizers.Adam()
STEP
for _ in range(3):
    step()
pathlib.Path("ended").touch()
"""
STEP = """
def step():
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(np.ones((2, 4))))
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
"""


@pytest.mark.parametrize("step", [STEP, f"@tf.function{STEP}"], ids=["plain", "in a graph"])
def test_loop_of_its_own_is_noticed_at_its_first_step(project: ScriptProject, step: str) -> None:
    other = "class Scaler:\n    def fit(self):\n        pass\n\nScaler().fit()\n"  # as of scikit-learn
    project.write(text=LOOP.replace("STEP", step + other))
    done = project.run("prepare")
    assert done.returncode == 1
    assert "in a loop of its own: name the function of its training step" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (project.script.parent / "ended").exists()


IN_A_GRAPH = f"""
data = tf.data.Dataset.from_tensor_slices(np.ones((32, 4), "float32")).batch(8)


@tf.function{STEP.replace("step():", "step(x):").replace("np.ones((2, 4))", "x")}
"""


def test_step_of_a_loop_of_its_own_is_judged(project: ScriptProject) -> None:
    profile = {"processes": 2, "rounds": 2, "steps_per_round": 2, "warmup_steps": 2, "trace_steps": 2}
    text = LOOP.replace("STEP", IN_A_GRAPH).replace("for _ in range(3):\n    step()", "for x in data:\n    step(x)")
    project.write(BOTH | {"task": {"script": str(project.script), "step": "step"}, "profile": profile}, text=text)
    out = project.passed("prepare")
    assert "prepare: train.py: the first call of step in line" in out
    assert "4 steps per epoch; speed only: its training step is a function of its own\n" in out
    assert project.train()["status"] == project.train("mixed_bfloat16")["status"] == "not_trained"
    assert "timing float32 (twice" in project.passed("profile")
    assert not (project.script.parent / "ended").exists()
    summary = project.json("data/profile/float32/summary.json")
    assert (summary["in_force"]["batch_size"], summary["configuration"]["optimizer"]) == (8, "adam")


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ("stepp", "task.step is 'stepp', which train.py does not define"),
        ("later", "ends without a call of later (task.step)"),
        ("raises", "fails before it calls raises: of its own"),
    ],
)
def test_step_that_cannot_be_taken_is_one_line(project: ScriptProject, step: str, message: str) -> None:
    raising = "def raises():\n    raise ValueError('of its own')\n\n\ndef later():\n    pass\n"
    called = "raises()" if step == "raises" else ""
    text = LOOP.replace("STEP", STEP + raising).replace("for _ in", f"{called}\nfor _ in")
    project.write({"task": {"script": str(project.script), "step": step}}, text=text)
    done = project.run("prepare")
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert message in done.stderr


DIFFERING = {  # from run to run: code before fit, its arguments, what is said, and whether quality is compared
    "unseeded split": (
        "order = np.random.default_rng().permutation(len(x))\nx, y = x[order], y[order]",
        "x, y, epochs=1, validation_split=0.5",
        "gives other training and validation data in each run: seed each generator",
        False,
    ),
    "unseeded noise in the training data alone": (
        "noise = np.random.default_rng().normal(size=x.shape).astype('float32')",
        "x + noise, y, epochs=1, validation_data=(x, y)",
        "gives other training data in each run, which moves the quality of each variant: seed each generator",
        True,
    ),
    "validation data in no fixed order": (
        "order = np.random.default_rng().permutation(len(x))",
        "x, y, epochs=1, validation_data=(x[order], y[order])",
        None,
        True,
    ),
    "augmentation that draws from NumPy, and more than eight batches to validate on": (
        "augmented = tf.keras.preprocessing.image.ImageDataGenerator(horizontal_flip=True, rotation_range=20)\n"
        "pictures = np.random.default_rng(0).normal(size=(320, 2, 2, 1)).astype('float32')\n"
        "layers = keras.layers\n"
        "model = keras.Sequential([layers.Flatten(), layers.Dense(4), layers.Dense(2, dtype='float32')])",
        "augmented.flow(pictures, y, batch_size=16), validation_data=augmented.flow(pictures, y, batch_size=16)",
        None,
        True,
    ),
}


@pytest.mark.parametrize("name", DIFFERING)
def test_data_that_differ_from_run_to_run_are_judged_for_what_they_can_tell(project: ScriptProject, name: str) -> None:
    build, fit, line, compares_quality = DIFFERING[name]
    project.write(BOTH, build=build, fit=fit)
    out = project.passed("prepare")
    assert line in out if line else "in each run" not in out
    info = project.json("data/prepared/task.json")
    assert info.get("speed_only") == (None if compares_quality else "its validation data differ from run to run")
    assert not info.get("left_out")


def test_layers_with_seeds_of_their_own_are_said(project: ScriptProject) -> None:
    build = (
        "given = keras.initializers.GlorotUniform(1)\n"
        "model = keras.Sequential([keras.layers.Dense(2, kernel_initializer=given, dtype='float32')])"
    )
    project.write({"train": {"seeds": [0, 5]}}, build=build)
    done = project.run("prepare")
    assert done.returncode == 1
    assert "gives the same initial weights with the seeds 0 and 5" in done.stderr


DATA = {
    "a dict": (
        "{'numbers': x}, y, validation_split=0.25",
        "model = keras.Sequential([keras.Input((4,), name='numbers'), *model.layers])",
        8,
    ),
    "a dataset": (
        "data, validation_data=data",
        "data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(99).batch(16)",
        20,
    ),
    "weights": ("x, y, sample_weight=x[:, 0] ** 2, validation_split=0.5, batch_size=16", "", 10),
    "no validation": ("x, y, batch_size=8", "", 32),
    "a generator": (
        "rows(), steps_per_epoch=5, validation_data=(x, y)",
        "def rows():\n    while True:\n        yield x[:16], y[:16]",
        5,
    ),
    "a PyDataset": (
        "Rows(workers=2), validation_data=Rows(workers=3), class_weight={0: 1.0, 1: 2.0}",
        "class Rows(keras.utils.PyDataset):\n"
        "    def __len__(self): return 6\n"
        "    def __getitem__(self, index): return x[:32], y[:32]",
        6,
    ),
}


@pytest.mark.parametrize("name", DATA)
def test_data_of_every_kind(project: ScriptProject, name: str) -> None:
    fit, build, steps = DATA[name]
    project.write(build=build, fit=f"{fit}, epochs=2")
    project.passed("prepare")
    info = project.json("data/prepared/task.json")
    assert (info["steps_per_epoch"], info["score_name"]) == (steps, "accuracy")
    assert 0 < project.train()["test_accuracy"] <= 1


SPEED_ONLY = {
    "no targets": (
        "x, epochs=2, validation_data=x",
        "class Own(keras.Model):\n"
        "    def __init__(self):\n        super().__init__()\n        self.dense = keras.layers.Dense(4)\n"
        "    def call(self, inputs):\n"
        "        found = self.dense(inputs)\n"
        "        self.add_loss(keras.ops.mean(keras.ops.square(keras.ops.cast(found, 'float32'))))\n"
        "        return found\n"
        "model = Own()\nmodel.compile = lambda **_: keras.Model.compile(model, 'adam')",
        "its data have no targets",
    ),
    "no validation of a dataset": (
        "data, epochs=2",
        "data = tf.data.Dataset.from_tensor_slices((x, y)).batch(16)",
        "it gives fit no validation data",
    ),
}


@pytest.mark.parametrize("name", SPEED_ONLY)
def test_what_cannot_be_scored_is_measured_for_speed(project: ScriptProject, name: str) -> None:
    fit, build, reason = SPEED_ONLY[name]
    project.write(build=build, fit=fit)
    assert f"speed only: {reason}" in project.passed("prepare")
    assert project.train()["status"] == "not_trained"


def test_regression_is_scored_by_its_negative_loss(project: ScriptProject) -> None:
    build = "y = x.sum(axis=1)\nmodel = keras.Sequential([keras.layers.Dense(1, dtype='float32')])\n"
    compiled = "model.compile(optimizer='adam', loss='mae')"
    text = "\n".join([build, compiled, "model.compile = lambda **_: None"])
    project.write(build=text)
    project.passed("prepare")
    metrics = project.train()
    assert metrics["test_neg_loss"] < 0
    assert metrics["permuted_score"] < metrics["test_neg_loss"]
    assert metrics["permuted_p"] < 0.001


def test_score_of_a_function_beside_the_script(project: ScriptProject) -> None:
    text = "import numpy as np\n\n\ndef certainty(y_true, y_pred):\n    return -np.abs(y_true - y_pred.argmax(1))\n"
    project.write({"task": {"score": "measures:certainty"}, "compare": {"quality_margin": 0.1}})
    (project.script.parent / "measures.py").write_text(text)
    assert "40 test examples, score certainty" in project.passed("prepare")
    metrics = project.train()
    assert -1 <= metrics["test_certainty"] <= 0
    assert "measures.py" in digests.task_files(loading.load().task)


@pytest.mark.parametrize(("metric", "name"), [("auc", "auc"), ("mean_absolute_error", "neg_mean_absolute_error")])
def test_score_by_a_metric_that_the_script_compiles(project: ScriptProject, metric: str, name: str) -> None:
    build = (
        "y = y[:, None].astype('float32')\n"
        "model = keras.Sequential([keras.layers.Dense(1, activation='sigmoid', dtype='float32')])\n"
        "metrics = ['accuracy', 'mean_absolute_error', keras.metrics.AUC()]\n"
        "model.compile('adam', 'binary_crossentropy', metrics=metrics)\n"
        "model.compile = lambda **_: None"
    )
    project.write(
        {"task": {"script": str(project.script), "score": metric}, "compare": {"quality_margin": 0.1}}, build=build
    )
    project.passed("environment")
    assert f"40 test examples, metric {name}" in project.passed("prepare")
    score = project.train()[f"test_{name}"]
    assert 0.5 < score <= 1 if metric == "auc" else -1 < score < 0


BAD_SCORES = {
    "no metric": ("auc", "", 0.1, "task.score is 'auc', which is not a metric that the script compiles (accuracy)"),
    "no margin": ("measures:certainty", "return -np.abs(y_true - y_pred.argmax(1))", None, "compare.quality_margin is"),
    "raises": ("measures:certainty", "return y_pred.nothing", 0.1, "measures:certainty cannot be computed"),
}


@pytest.mark.parametrize("name", BAD_SCORES)
def test_score_that_cannot_be_used(project: ScriptProject, name: str) -> None:
    score, body, margin, message = BAD_SCORES[name]
    project.write({"task": {"score": score}, "compare": {"quality_margin": margin}})
    (project.script.parent / "measures.py").write_text(
        f"import numpy as np\n\n\ndef certainty(y_true, y_pred):\n    {body}\n"
    )
    done = project.run("prepare")
    assert done.returncode in (1, 2)
    assert message in done.stderr


def test_example_of_a_time_series_is_scored_by_its_negative_loss(project: ScriptProject, root: Path) -> None:
    text = (root / "examples/lstm_script.py").read_text().replace("LENGTH, UNITS = 40, 64", "LENGTH, UNITS = 10, 8")
    project.write(text=text)
    assert "1,000 test examples, score neg_loss" in project.passed("prepare")
    assert -0.3 < project.train()["test_neg_loss"] < 0


WRONG = {
    "raises": (
        "raise ValueError('no data')",
        {},
        "fails before it calls fit: no data (train.py, line LINE); in plain Python, too",
    ),
    "raises in fit": (
        "keras.losses.SparseCategoricalCrossentropy.call = lambda *_: 1 / 0",
        {},
        "division by zero (train.py, line LINE); in plain Python, too",
    ),
    "ends": ("sys.exit(0)", {}, "/.halfstep/script/float32-0.txt; in plain Python, too"),
    "fit 2": ("", {"task": {"fit": 2}}, "calls fit only 1 time, and task.fit is 2"),
    "no network": (
        "keras.utils.get_file('w.h5', 'http://127.0.0.1:9/w.h5', cache_dir='.')",
        {},
        "there is no network to fetch http://127.0.0.1:9/w.h5: fetch it elsewhere, and put it at ./datasets/w.h5",
    ),
    "strategy": (
        "tf.distribute.MultiWorkerMirroredStrategy().scope().__enter__()",
        {},
        "trains under CollectiveAllReduceStrategy, which halfstep cannot measure: leave the strategy out",
    ),
    "batches": ("", {"train": {"batch_size": 64}}, "train.batch_size is 64, and task.script"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_script_gives_one_line(project: ScriptProject, name: str) -> None:
    start, params, said = WRONG[name]
    said = said.replace("LINE", str(SOURCE.splitlines().index("START") + 1))
    build = "data = tf.data.Dataset.from_tensor_slices((x, y)).batch(16)"
    project.write(params, start=start, build=build, fit="data, validation_data=data")
    done = project.run("prepare")
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert said in done.stderr


TWO_PHASES = (
    source(fit="x, y, epochs=1, validation_split=0.25")
    + """
first = history.history["loss"], model.history.epoch, np.random.rand()
print("first", first)
for phase in range(1):
    model.layers[0].trainable = False
    model.compile(optimizer=keras.optimizers.Adam(1e-4), loss=loss, metrics=["accuracy"])
    history = model.fit(x, y, epochs=2, validation_split=0.25)
print("history", history.history["loss"][0])
"""
)


def test_later_fit_is_judged_from_where_the_earlier_one_ends(project: ScriptProject) -> None:
    """Which is trained once, so that all variants start from the same weights."""
    project.write(BOTH | {"task": {"script": str(project.script), "fit": "last"}}, text=TWO_PHASES)
    plain = project.plain()
    out = project.passed("prepare")
    line = 1 + TWO_PHASES.splitlines().index("    history = model.fit(x, y, epochs=2, validation_split=0.25)")
    assert f"the call of fit in line {line} is taken\n" in out
    assert "train.py: 1 before it is trained once, and all variants go on from there" in out
    assert "train.py calls fit in a loop: one training of several is judged" in out
    assert {"fits/0/1.json", "fits/0/1.npz"} <= set(project.json("data/prepared/manifest.json"))
    firsts, trained = [next(line for line in plain.splitlines() if line.startswith("first "))], {}
    for variant in ("float32", "mixed_bfloat16"):
        trained[variant] = project.train(variant)
        printed = (project.root / f".halfstep/script/{variant}-0.txt").read_text()
        assert "Epoch 1/1" not in printed
        firsts.append(next(line for line in printed.splitlines() if line.startswith("first ")))
    assert len(set(firsts)) == 1
    assert trained["float32"]["initial_weights"] == trained["mixed_bfloat16"]["initial_weights"]
    with (project.root / "data/train/float32-0/history.csv").open() as stream:
        (first, _) = csv.DictReader(stream)
    assert float(first["loss"]) == pytest.approx(float(plain.rpartition("history ")[2]), rel=1e-6)


def test_script_runs_in_the_root_of_its_repository_where_it_finds_its_files_there_alone(project: ScriptProject) -> None:
    root = project.script.parent
    text = source(start="from library.names import PLACE\nprint(Path('settings.txt').read_text(), PLACE)")
    project.write({"task": {"script": str(root / "jobs/train.py")}})
    contents = {"jobs/train.py": text, "library/names.py": "PLACE = 7", "settings.txt": "from the root", "setup.py": ""}
    project.lay(contents)
    project.passed("environment")
    assert set(project.json("data/keys/task")["files"]) == {"train.py", "library/names.py"}
    out = project.passed("prepare")
    assert f"train.py runs in {root}: it does not find its files in its own folder" in out
    assert project.train()["status"] == "finished"
    assert "from the root 7" in (project.root / ".halfstep/script/float32-0.txt").read_text()


def test_module_in_the_root_of_the_repository_is_found_from_the_own_folder(project: ScriptProject) -> None:
    root = project.script.parent
    text = source(start="from library import PLACE\nprint(Path('../beside.txt').read_text(), PLACE)")
    project.write({"task": {"script": str(root / "jobs/train.py")}})
    project.lay({"jobs/train.py": text, "library.py": "PLACE = 7", "beside.txt": "here", "setup.py": ""})
    assert "train.py runs in" not in project.passed("prepare")
    assert "here 7" in (project.root / ".halfstep/script/float32-0.txt").read_text()


def test_notebook_is_the_script_of_its_code_cells(project: ScriptProject) -> None:
    cells = [
        {"cell_type": "markdown", "source": ["# Signs"]},
        {"cell_type": "code", "source": ["%matplotlib inline\n", "!pip install \\\n", "   nothing\n", "import keras"]},
        {"cell_type": "code", "source": "%%bash\nexit 1"},
        {"cell_type": "code", "source": source().replace("    history =", "    %time history =")},
        {"cell_type": "code", "source": ["display(history)"]},
    ]
    project.script = project.script.with_suffix(".ipynb")
    project.write(text=json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
    project.passed("environment")
    out = project.passed("prepare")
    line = int(out.split("the call of fit in line ")[1].split()[0])
    assert "history = model.fit(" in (project.root / ".halfstep/script/train.py").read_text().splitlines()[line - 1]
    assert project.train()["status"] == "finished"
    assert [path.name for path in project.script.parent.iterdir()] == ["train.ipynb"]


def test_arguments_folder_and_modules_of_the_script(project: ScriptProject) -> None:
    start = "import helper\nprint(sys.argv[1:], Path('beside.txt').read_text(), __name__, helper.VALUE)"
    project.write({"task": {"script": str(project.script), "arguments": ["--width", 64]}}, start=start)
    (project.script.parent / "beside.txt").write_text("here")
    (project.script.parent / "helper.py").write_text("VALUE = 7")
    assert f"reads {project.script.parent / 'beside.txt'}: an edit runs the stages again" in project.passed("prepare")
    project.write({"task": {"arguments": ["--width", 64], "depends": [str(project.script.parent)]}}, start=start)
    assert " reads " not in project.passed("prepare")
    assert "['--width', '64'] here __main__ 7" in (project.root / ".halfstep/script/float32-0.txt").read_text()
    assert not (project.script.parent / "__pycache__").exists()


@pytest.mark.parametrize(("start", "place"), [("jobs/train.py", ""), ("-m jobs.train", "src/")], ids=str)
def test_script_runs_where_its_user_starts_it(project: ScriptProject, start: str, place: str) -> None:
    """`python jobs/train.py` and `python -m jobs.train` from the root of a repository, which has a module `tools`."""
    root = project.script.parent
    relative = "from . import here; from tools import VALUE" if start.startswith("-m") else "import here; VALUE = 7"
    text = source(start=f"{relative}\nprint(Path('settings.txt').read_text(), __name__, here.PLACE, VALUE, sys.argv)")
    project.lay(
        {
            f"{place}jobs/train.py": text,
            f"{place}jobs/__init__.py": "",
            f"{place}jobs/here.py": "PLACE = 'beside'",
            f"{place}tools.py": "VALUE = 7",
            "settings.txt": "from the root",
        }
    )
    script = start if start.startswith("-m") else str(root / start)
    project.write({"task": {"script": script, "folder": str(root)}})
    project.passed("environment")
    project.passed("prepare")
    assert project.train()["status"] == "finished"
    printed = (project.root / ".halfstep/script/float32-0.txt").read_text()
    assert f"from the root __main__ beside 7 ['{root / place / 'jobs/train.py'}']" in printed
    expected = {"jobs/train.py", "jobs/here.py", "tools.py"} if start.startswith("-m") else {"train.py", "here.py"}
    assert set(project.json("data/keys/task")["files"]) >= expected


def test_script_never_goes_on_after_fit(project: ScriptProject) -> None:
    text = (
        source()
        .replace("    history = model", "    try: history = model")
        .replace(
            'print("history"', "    except BaseException: pass\n    finally: Path('gone_on').touch()\nprint(\"history\""
        )
    )
    project.write(text=text)
    project.passed("prepare")
    project.train()
    assert not (project.script.parent / "gone_on").exists()
    assert "history" not in (project.root / ".halfstep/script/float32-0.txt").read_text()
