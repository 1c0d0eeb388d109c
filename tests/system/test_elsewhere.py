"""What runs in the user's interpreter needs nothing but the standard library, NumPy, TensorFlow and Keras."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import pytest

from halfstep.params.schema import Params, TaskParams, Variant
from halfstep.results.task import ScriptInfo, TaskInfo
from halfstep.system.fork_server import path_of
from halfstep.system.records import IS_ELSEWHERE

# What the processes are started with, and what they run.
PROGRAMS = (
    *("halfstep.system.child", "halfstep.system.fork_server", "halfstep.prepare.inspection", "halfstep.prepare.layers"),
    *("halfstep.train.process", "halfstep.profile.worker", "halfstep.profile.batch_trial"),
    *("halfstep.serve.exporting", "halfstep.serve.worker", "halfstep.serve.process"),
)
# Of halfstep's requirements all that neither TensorFlow nor Keras requires.
ABSENT = (
    *("ai_edge_litert", "click", "dvc", "dvc_data", "dvc_objects", "filelock", "greenlet", "jinja2", "mlflow"),
    *("pandas", "PIL", "psutil", "pydantic", "pydantic_core", "pynvml", "ruamel", "scipy", "sklearn", "sqlalchemy"),
    *("xprof", "yaml"),
)
IN_PLACE = f"""
import importlib, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {ABSENT}:
            raise ModuleNotFoundError(f"no {{name}} here", name=name)

sys.meta_path.insert(0, Absent())
"""


def run_elsewhere(code: str, root: Path, *, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Runs code as in the user's interpreter, without halfstep's packages."""
    variables = os.environ | {IS_ELSEWHERE: "1", "PYTHONPATH": str(root)}
    return subprocess.run([sys.executable, "-c", IN_PLACE + code], env=variables, input=given, capture_output=True)


@pytest.mark.parametrize("program", PROGRAMS)
def test_program_imports_nothing_else(program: str, root: Path) -> None:
    ended = run_elsewhere(f"importlib.import_module({program!r})", root)
    assert ended.returncode == 0, ended.stderr.decode()[-1000:]


def test_absent_packages_are_missed(root: Path) -> None:
    """The check can fail: what reads a trace needs them."""
    ended = run_elsewhere("import halfstep.profile.stage", root)
    assert b"ModuleNotFoundError" in ended.stderr


def test_paths_cross_the_connection_between_releases_of_python() -> None:
    """Python 3.13 has their class in another module than 3.12 and 3.14."""
    content = bytes(ForkingPickler.dumps({"folder": Path("a/b")}))
    assert b"pathlib" not in content
    assert path_of.__name__.encode() in content
    assert pickle.loads(content) == {"folder": Path("a/b")}


def test_records_cross_the_connection_both_ways(root: Path) -> None:
    settings = Params(variants={"float32": Variant(policy="float32", env={"A": "1"})})
    info = TaskInfo(
        name="train.py",
        score_name="none",
        score_kind="score",
        examples=1,
        script=ScriptInfo(line=1, epochs=2, batch_size=3),
    )
    code = """
import pickle, sys
settings, info = pickle.load(sys.stdin.buffer)
entry = settings.variants["float32"].with_float32(["dense"])
assert (entry.jit_compile, entry.dtype_policy.name, entry.variables["A"]) == ("auto", "float32", "1"), entry
made = type(info)(name=info.name, score_name="auc", score_kind="metric", examples=7, script=info.script)
sys.stdout.buffer.write(pickle.dumps((entry, entry.applied_to(settings.train), made)))
"""
    ended = run_elsewhere(code, root, given=pickle.dumps((settings, info)))
    assert ended.returncode == 0, ended.stderr.decode()
    entry, train, made = pickle.loads(ended.stdout)
    assert entry == settings.variants["float32"].with_float32(["dense"])
    assert train == settings.variants["float32"].applied_to(settings.train)
    assert made == info.model_copy(update={"score_name": "auc", "score_kind": "metric", "examples": 7})
    assert made.as_json()["script"] == {"line": 1, "epochs": 2, "batch_size": 3}
    assert TaskParams().python is None
