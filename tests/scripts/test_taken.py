"""What of a script is taken as its training, in which settings, and what it depends on: through the real stages."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from halfstep.inputs import digests
from halfstep.params import loading
from halfstep.system import files

if TYPE_CHECKING:
    from tests.scripts.conftest import ScriptProject

pytestmark = pytest.mark.slow

BOTH = {"train": {"variants": ["float32", "mixed_bfloat16"]}}
IN_A_FUNCTION = """
import pathlib, queue, multiprocessing, threading
import keras, numpy as np

def train():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    model.fit(np.ones((64, 4)), np.ones(64))
    pathlib.Path("ended").touch()

if __name__ == "__main__":
    answer = multiprocessing.Queue()
    KIND(target=train).start()
    answer.get()  # of what never answers
"""


@pytest.mark.parametrize(
    ("kind", "said"),
    [("threading.Thread", "a thread"), ("multiprocessing.Process", "a process")],
    ids=lambda text: text,
)
def test_training_that_the_main_thread_does_not_call_is_named(project: ScriptProject, kind: str, said: str) -> None:
    project.write(text=IN_A_FUNCTION.replace("KIND", kind))
    done = project.run("prepare")
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert f"calls fit in {said} of its own, line 8: call the function that trains without it" in done.stderr
    assert not (project.script.parent / "ended").exists()


BY_A_LIBRARY = """
import keras, numpy as np
from keras.wrappers import SKLearnRegressor

def build(X, y):
    width = np.random.default_rng(len(X)).integers(4, 8)  # as a tuner draws
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(int(width)), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    return model

SKLearnRegressor(build, fit_kwargs={"validation_split": 0.5}).fit(np.ones((64, 4)), np.ones(64))
"""


def test_first_network_that_a_library_trains_is_judged_and_said(project: ScriptProject) -> None:
    project.write(text=BY_A_LIBRARY)
    out = project.passed("prepare")
    assert "the call of fit in line 11 is taken" in out
    assert "trains by keras: what that trains later is not judged, such as other networks" in out


GAN = """
import pathlib, keras, numpy as np

judge = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
judge.compile("adam", "mse")
for _ in range(3):
    judge.train_on_batch(np.ones((16, 4)), np.ones((16, 1)), return_dict=True)
    judge.train_on_batch(np.zeros((16, 4)), np.zeros((16, 1)))
pathlib.Path("ended").touch()
"""


def test_train_on_batch_is_a_step_of_keras(project: ScriptProject) -> None:
    profile = {"processes": 2, "rounds": 2, "steps_per_round": 2, "warmup_steps": 2, "trace_steps": 2}
    project.write(BOTH | {"profile": profile}, text=GAN)
    out = project.passed("prepare")
    assert "the first call of train_on_batch in line 7 is taken; later ones (line 8) are not" in out
    assert "speed only: its training step is train_on_batch, and one batch is timed again and again" in out
    assert project.train()["status"] == project.train("mixed_bfloat16")["status"] == "not_trained"
    assert "timing float32 (twice" in project.passed("profile")
    assert project.json("data/profile/float32/summary.json")["in_force"]["batch_size"] == 16
    assert not (project.script.parent / "ended").exists()


def test_settings_of_keras_are_in_force_for_every_variant(project: ScriptProject) -> None:
    sets = 'keras.backend.set_floatx("float16")\ntf.keras.backend.set_epsilon(1e-4)'
    project.write(start=sets, build='print("inputs", keras.Input((1,)).dtype, keras.backend.epsilon())')
    out = project.passed("prepare")
    assert "train.py: replaces its floatx (float16) by float32" in out
    assert "train.py: keeps keras.config.epsilon, which it sets to 0.0001, under every policy" in out
    assert "inputs float32 0.0001" in (project.root / ".halfstep/script/float32-0.txt").read_text()


def test_data_that_another_network_gives_do_not_differ_from_run_to_run(project: ScriptProject) -> None:
    frozen = "x = keras.Sequential([keras.Input(x.shape[1:]), keras.layers.Dense(x.shape[1])]).predict(x, verbose=0)"
    project.write(BOTH, build=frozen)
    out = project.passed("prepare")
    assert "train.py gives fit data that depend on the precision" in out
    assert "in each run" not in out
    assert "speed_only" not in project.json("data/prepared/task.json")


def test_training_that_starts_from_other_weights_ends_at_its_start(project: ScriptProject) -> None:
    path = Path(tempfile.gettempdir(), f"{project.root.parent.name}.weights.h5")
    saves = f"""
class Saves(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.model.save_weights({str(path)!r})

model.build((None, 4))
if Path({str(path)!r}).exists():
    model.load_weights({str(path)!r})
"""
    project.write(BOTH, build=saves, fit="x, y, epochs=1, validation_split=0.25, callbacks=[Saves()], verbose=0")
    project.passed("prepare")
    try:
        project.train()
        done = project.run("train", "--variant", "mixed_bfloat16", "--seed", "0")
    finally:
        path.unlink()
    assert done.returncode == 1
    assert f"it reads {path}, which it did not there" in done.stderr
    assert not (project.root / "data/train/mixed_bfloat16-0").exists()


def test_files_that_a_script_reads_are_dependencies(project: ScriptProject) -> None:
    project.lay({"config.json": '{"width": 4}'})
    project.write(start='width = __import__("json").load(open("config.json"))["width"]')
    assert "config.json: an edit runs the stages again" in project.passed("prepare")

    def key() -> str:
        found = digests.tasks_digest(loading.load())
        files.write_json(files.TASK_FILE, found)
        return json.dumps(found)

    first = key()
    assert key() == first
    project.lay({"config.json": '{"width": 8}'})
    edited = key()
    assert edited != first
    project.passed("prepare")  # it has read the new one
    assert key() == edited
    project.lay({"config.json": '{"width": 4}'})
    assert key() not in (first, edited)
