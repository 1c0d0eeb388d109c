"""Other interpreters are looked at before anything runs."""

from __future__ import annotations

import json
import platform
from pathlib import Path

import pytest

from halfstep.environment.preflight import input_problems
from halfstep.inputs import digests
from halfstep.params.schema import Params, Variant
from halfstep.system import interpreters

FINE = {"python": "3.11.9", "tensorflow": "2.20.1", "keras": "3.10.0"}


HERE = f"{platform.system()} {platform.machine()}"


def _answering(tmp_path: Path, versions: dict[str, str], system: str = HERE) -> str:
    """A program that answers as an interpreter with these packages does."""
    path = tmp_path / "python"
    path.write_text(f"#!/bin/sh\necho '{json.dumps([versions, [], system])}'\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("versions", "problem"),
    [
        (FINE, None),
        (FINE | {"python": "3.9.2"}, "which has Python 3.9.2; halfstep needs Python 3.10 or newer"),
        (
            FINE | {"tensorflow": "2.18.0"},
            "which has TensorFlow 2.18.0; halfstep needs TensorFlow 2.18.1 or newer: run ",
        ),
        (FINE | {"keras": "2.15.0"}, "which has Keras 2.15.0; halfstep needs Keras 3.8 or newer: run "),
        ({"python": "3.11.9"}, "which has no TensorFlow: run `"),
    ],
)
def test_old_releases_are_refused_by_name(versions: dict[str, str], problem: str | None, tmp_path: Path) -> None:
    python = _answering(tmp_path, versions)
    found = interpreters.problem_with(python)
    if problem is None:
        assert found is None
        return
    assert found is not None
    assert found.startswith(problem)
    assert problem.endswith("newer") or f'{python} -m pip install "' in found


def test_interpreter_of_another_platform_is_refused(tmp_path: Path) -> None:
    found = interpreters.problem_with(_answering(tmp_path, FINE, "Plan9 mips"))
    assert found == f"which is built for Plan9 mips, and halfstep runs on {HERE}: give one of the same build"


def test_link_of_a_folder_that_was_moved_is_made_anew(tmp_path: Path) -> None:
    (tmp_path / "halfstep").symlink_to(tmp_path / "nowhere")
    for _ in range(2):
        interpreters.link(str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["halfstep"]
    assert (tmp_path / "halfstep/system/interpreters.py").exists()


def test_active_environment_comes_first_then_the_nearest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = tmp_path / "project" / "deep"
    for folder in (tmp_path / "active", tmp_path / "conda", project.parent / ".venv"):
        (folder / "bin").mkdir(parents=True)
        _answering(folder / "bin", FINE)
    project.mkdir()
    monkeypatch.setenv("CONDA_PREFIX", str(tmp_path / "conda"))
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path / "active"))
    assert interpreters.neighbour(project) == tmp_path / "active/bin/python"
    monkeypatch.delenv("VIRTUAL_ENV")
    assert interpreters.neighbour(project) == project.parent / ".venv/bin/python"
    assert interpreters.neighbour(tmp_path) == tmp_path / "conda/bin/python"
    monkeypatch.delenv("CONDA_PREFIX")
    assert interpreters.neighbour(tmp_path) is None


def test_what_is_no_interpreter_is_refused_with_one_line(tmp_path: Path) -> None:
    (tmp_path / "silent").write_text("#!/bin/sh\necho broken >&2\n")
    (tmp_path / "silent").chmod(0o755)
    assert interpreters.problem_with(str(tmp_path / "nowhere")) == "which does not exist"
    assert str(interpreters.problem_with(str(tmp_path))).startswith("which is not a program")
    assert interpreters.problem_with(str(tmp_path / "silent")) == "which does not answer as Python does (broken)"
    params = Params(
        variants={"float32": Variant(policy="float32"), "old": Variant(policy="float32", python=str(tmp_path))}
    )
    params = params.model_copy(update={"train": params.train.model_copy(update={"variants": ("float32", "old")})})
    (line,) = input_problems(params)
    assert line.startswith(f"variants.old.python is '{tmp_path}', which is not a program")


def test_releases_of_the_interpreter_are_a_part_of_the_task_s_digest(tmp_path: Path) -> None:
    params = Params(variants={"float32": Variant(policy="float32", python=_answering(tmp_path, FINE))})
    params = params.model_copy(update={"train": params.train.model_copy(update={"variants": ("float32",)})})
    assert digests.tasks_digest(params)["variants.float32.python"] == FINE
