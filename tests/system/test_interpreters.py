"""Other interpreters are looked at before anything runs, and get what they lack of halfstep's own packages."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from halfstep.environment.preflight import input_problems
from halfstep.inputs import digests
from halfstep.inputs.closure import Module, _imports, needed_files
from halfstep.params.schema import Params, Variant
from halfstep.system import interpreters
from halfstep.system.imports import ROOT

FINE = {"python": "3.11.9", "tensorflow": "2.20.1", "keras": "3.10.0"}


def _answering(tmp_path: Path, versions: dict[str, str], missing: list[str]) -> str:
    """A program that answers as an interpreter with these packages does."""
    path = tmp_path / "python"
    path.write_text(f"#!/bin/sh\necho '{json.dumps([versions, [], missing])}'\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("versions", "problem"),
    [
        (FINE, None),
        (FINE | {"python": "3.10.2"}, "which has Python 3.10.2; halfstep needs Python 3.11 or newer"),
        (FINE | {"tensorflow": "2.9.1"}, "which has TensorFlow 2.9.1; halfstep needs TensorFlow 2.18 or newer"),
        (FINE | {"keras": "2.15.0"}, "which has Keras 2.15.0; halfstep needs Keras 3.8 or newer"),
        ({"python": "3.11.9"}, "which has no TensorFlow; install TensorFlow 2.18 or newer in its environment"),
    ],
)
def test_old_releases_are_refused_by_name(versions: dict[str, str], problem: str | None, tmp_path: Path) -> None:
    assert interpreters.problem_with(_answering(tmp_path, versions, []), trains=True) == problem


def test_packages_are_lent_to_the_same_release_of_python_alone(tmp_path: Path) -> None:
    same, other = f"3.{sys.version_info[1]}.99", f"3.{sys.version_info[1] + 1}.0"
    (tmp_path / "same").mkdir()
    missing = ["greenlet", "mlflow"]
    of_same = _answering(tmp_path / "same", FINE | {"python": same}, missing)
    assert interpreters.problem_with(of_same, trains=True) is None
    of_other = _answering(tmp_path, FINE | {"python": other}, missing)
    timed, trained = (interpreters.problem_with(of_other, trains=trains) or "" for trains in (False, True))
    assert timed.startswith(f"which has no greenlet, and Python {other} cannot use those of Python ")
    assert "-m pip install filelock greenlet " in timed
    assert "mlflow" not in timed
    assert trained.startswith(f"which has no greenlet and mlflow, and Python {other} cannot")
    assert trained.endswith(" scipy mlflow sqlalchemy`")


def test_links_of_a_folder_that_was_moved_are_made_anew(tmp_path: Path) -> None:
    (tmp_path / "halfstep").mkdir()
    (tmp_path / "halfstep/halfstep").symlink_to(tmp_path / "nowhere")
    for _ in range(2):
        interpreters.lend(str(tmp_path))
    assert (tmp_path / "halfstep/halfstep/system/lent.py").exists()
    assert {path.name.partition(".")[0] for path in (tmp_path / "lent").iterdir()} == set(interpreters._LENT)


def test_what_is_no_interpreter_is_refused_with_one_line(tmp_path: Path) -> None:
    (tmp_path / "silent").write_text("#!/bin/sh\necho broken >&2\n")
    (tmp_path / "silent").chmod(0o755)
    assert interpreters.problem_with(str(tmp_path / "nowhere"), trains=False) == "which does not exist"
    assert str(interpreters.problem_with(str(tmp_path), trains=False)).startswith("which is not a program")
    assert (
        interpreters.problem_with(str(tmp_path / "silent"), trains=False)
        == "which does not answer as Python does (broken)"
    )
    params = Params(
        variants={"float32": Variant(policy="float32"), "old": Variant(policy="float32", python=str(tmp_path))}
    )
    params = params.model_copy(update={"train": params.train.model_copy(update={"variants": ("float32", "old")})})
    (line,) = input_problems(params)
    assert line.startswith(f"variants.old.python is '{tmp_path}', which is not a program")


_OF_TRAININGS = {*interpreters._OF_TRAININGS, "PIL", "dvc_data", "dvc_objects"}  # those of DVC may be absent
_TIMED = ("profile.worker", "profile.max_batch", "prepare.inspection")


@pytest.mark.parametrize(
    ("names", "of_parent", "further"),
    [
        (_TIMED, ("halfstep/tracking/", "halfstep/profile/trace/xprof.py"), {"mlflow"}),  # scripts bring their own
        (("train.stage",), ("halfstep/profile/trace/xprof.py",), _OF_TRAININGS),
    ],
)
def test_processes_import_nothing_else_of_halfstep_s_packages(
    names: tuple[str, ...], of_parent: tuple[str, ...], further: set[str]
) -> None:
    """What an interpreter must have: what TensorFlow requires, and what is lent."""
    start = [Module(("halfstep", *name.split(".")), ROOT / f"halfstep/{name.replace('.', '/')}.py") for name in names]
    packages = {
        name.partition(".")[0]
        for path, file in needed_files(start, "halfstep", ROOT).items()
        if not path.startswith(of_parent)
        for name in _imports(file.read_bytes())
        if not name.startswith(".")
    }
    of_tensorflow = {"google", "keras", "numpy", "tensorflow"}
    others = packages - set(sys.stdlib_module_names) - of_tensorflow - further - {"halfstep"}
    assert others <= set(interpreters._LENT)


def test_releases_of_the_interpreter_are_a_part_of_the_task_s_digest(tmp_path: Path) -> None:
    params = Params(variants={"float32": Variant(policy="float32", python=_answering(tmp_path, FINE, []))})
    params = params.model_copy(update={"train": params.train.model_copy(update={"variants": ("float32",)})})
    assert digests.tasks_digest(params)["variants.float32.python"] == FINE
