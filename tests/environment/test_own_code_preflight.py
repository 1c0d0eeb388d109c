"""What `environment` finds out about the user's own task without importing it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from halfstep.environment.preflight import input_problems
from halfstep.params.schema import Params, TaskParams, TrainParams, Variant


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def problems(name: str = "own:build", **others: Any) -> list[str]:
    return input_problems(Params(task=TaskParams(name=name, **others)))


@pytest.mark.parametrize(
    ("name", "fragment"),
    [
        ("image", "task.name is 'image'; it must be images, or package.module:function; did you mean 'images'?"),
        ("own:", "task.name is 'own:'; it must be images, or package.module:function"),
        ("../own:build", "it must be images, or package.module:function"),
        ("gone:build", "task.name is 'gone:build'; there is no module 'gone' next to params.yaml or among installed"),
        (f"{'a' * 400}:b", "task.name has 402 characters; it must be shorter than 300"),
    ],
)
def test_unknown_tasks_are_rejected(name: str, fragment: str) -> None:
    (line,) = problems(name)
    assert fragment in line


@pytest.mark.parametrize(
    ("source", "fragment"),
    [
        ("def buidl(): ...", "own.py does not define 'build'; did you mean 'buidl'?"),
        ("x = 1\ndef build(:", "own.py is not valid Python: invalid syntax (own.py, line 2)"),
    ],
)
def test_invalid_function_is_rejected(project: Path, source: str, fragment: str) -> None:
    (project / "own.py").write_text(source)
    (line,) = problems()
    assert fragment in line
    assert line.isprintable()


def test_arguments_that_halfstep_gives_are_listed(project: Path) -> None:
    (project / "own.py").write_text("def build(*, batch_size, seed, width): ...")
    lines = problems(arguments={"width": 3, "seed": 1, "batch_size": 2, "directory": "x"})
    assert lines == [
        "task.arguments contains 'batch_size', which halfstep passes to the function itself; "
        "set train.batch_size instead",
        "task.arguments contains 'seed', which halfstep passes to the function itself; set train.seeds instead",
        "task.arguments contains 'directory', which halfstep passes to the function itself; "
        "remove it, the function gets the folder that prepare() of its module fills",
    ]


def test_module_must_lie_in_the_folder(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "code").mkdir()
    (project / "file").write_text("")
    (project / "own.py").write_text("def build(*, batch_size, seed): ...")
    monkeypatch.syspath_prepend(str(project))
    assert problems() == []
    (line,) = problems(path="code")
    assert line == "task.name is 'own:build'; there is no module 'own' in task.path, which is 'code'"
    (line,) = problems(path="gone")
    assert line == "task.path is 'gone', which does not exist; it must be the folder that holds the module"
    (line,) = problems(path="file")
    assert line == "task.path is 'file', which is not a folder; it must be the folder that holds the module"
    before = Variant(policy="float32", task_path="gone")
    params = Params(
        task=TaskParams(name="own:build"),
        train=TrainParams(variants=("float32", "before")),
        variants=Params().variants | {"before": before},
    )
    (line,) = input_problems(params)
    assert line.startswith("variants.before.task_path is 'gone', which does not exist")
    (line,) = problems(path="x" * 5000)
    assert line.startswith("task.path is 'xxx")
    assert len(line) < 500


def test_paths_that_a_task_cannot_depend_on(project: Path) -> None:
    (project / "own.py").write_text("def build(*, batch_size, seed): ...")
    (project / "data" / "raw").mkdir(parents=True)
    os.mkfifo(project / "pipe")
    assert problems(depends=("own.py", "data/raw")) == []
    assert problems(depends=("gone", "pipe", ".", "data/prepared/..", "x" * 5000))[:-1] == [
        "task.depends contains 'gone', which does not exist; correct or remove it",
        "task.depends contains 'pipe', which is neither a file nor a folder; remove it",
        "task.depends contains '.', which contains results of the pipeline; list only what your task reads",
        "task.depends contains 'data/prepared/..', which does not exist; correct or remove it",
    ]
    for path in ("/proc/cpuinfo", "/proc", "/sys/kernel"):
        (line,) = problems(depends=(path,))
        assert "is part of /proc or /sys, or is /dev: its contents are not fixed" in line
    assert problems(depends=("/dev/null",)) == [
        "task.depends contains '/dev/null', which is neither a file nor a folder; remove it"
    ]
    (project / "data" / "prepared").mkdir()
    for inside in ("data", "data/prepared"):
        (line,) = problems(depends=(inside,))
        assert "contains results of the pipeline" in line


def test_the_task_is_not_imported(project: Path) -> None:
    (project / "own.py").write_text(
        "import pathlib\npathlib.Path('imported').touch()\ndef build(*, batch_size, seed): ..."
    )
    assert problems() == []
    assert not (project / "imported").exists()


@pytest.mark.parametrize(
    ("source", "others", "fragment"),
    [
        ("name = input()\nmodel.fit(x)", {}, "'train.py', which calls input() in line 1, before fit: halfstep runs it"),
        ("model.fit(x)\ninput('again?')", {}, None),
        ("model.fit(x)", {"folder": "gone"}, "task.folder is 'gone', which is not a folder"),
        ("model.fit(x)", {"folder": "."}, None),
        ("model.fit(x)", {"script": "-m train"}, None),
        ("model.fit(x)", {"script": "-m jobs.train"}, "'-m jobs.train', which does not exist as"),
        ("model.fit(", {}, "'train.py', which is not valid Python"),
        ("import tf_keras as keras\nkeras.Model().fit(x)", {}, "train.py, line 1, asks for Keras 2 (tf_keras)"),
        ("import os\nos.environ['TF_USE_LEGACY_KERAS'] = '1'\nmodel.fit(x)", {}, "train.py, line 2, asks for Keras 2"),
        ("import os\nos.environ['TF_USE_LEGACY_KERAS'] = '0'\nmodel.fit(x)", {}, None),
        ("import helper\nhelper.train()", {}, None),
    ],
)
def test_script_that_cannot_be_run_is_rejected(source: str, others: dict[str, Any], fragment: str | None) -> None:
    Path("train.py").write_text(source)
    Path("helper.py").write_text("def train(): model.fit(x)")
    values: dict[str, Any] = {"script": "train.py", "arguments": [], **others}
    messages = input_problems(Params(task=TaskParams(**values)))
    assert len(messages) == (fragment is not None)
    assert fragment is None or fragment in messages[0]
