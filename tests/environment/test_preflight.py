from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from halfstep.environment.preflight import checked_params, input_problems, keras_applications
from halfstep.errors import ParameterError
from halfstep.params.schema import DataParams, ModelParams, Params


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_key_that_dvc_needs_is_missed_at_once(project: Path, root: Path) -> None:
    """Before anything is prepared: DVC itself says it at the stage that depends on the key."""
    text = (root / "params.yaml").read_text()
    (project / "dvc.yaml").write_text((root / "dvc.yaml").read_text())
    (project / "params.yaml").write_text(text)
    checked_params()
    lines = [line for line in text.splitlines(keepends=True) if not line.startswith("  optimizer: ")]
    (project / "params.yaml").write_text("".join(lines))
    with pytest.raises(ParameterError) as caught:
        checked_params()
    line = 'params.yaml: train.optimizer is missing, without which DVC does not run; its default is "adam"'
    assert str(caught.value) == line
    (project / "dvc.yaml").unlink()
    checked_params()


def model_problems(name: str) -> list[str]:
    return input_problems(Params(model=ModelParams(name=name)))


def folder_problems(path: str) -> list[str]:
    return input_problems(Params(data=DataParams(source="folder", path=path)))


@pytest.mark.parametrize(
    ("name", "fragments"),
    [
        ("resnet21", ["model.name is 'resnet21'; it must be one of cnn, resnet20,", "did you mean 'resnet20'?"]),
        ("keras.applications.ResNet51", ["keras.applications has no 'ResNet51'", "did you mean 'ResNet"]),
        ("keras.applications.", ["keras.applications has no ''"]),
        ("keras.applications.resnet", ["keras.applications has no 'resnet'"]),
        ("own:", ["model.name is 'own:'; it must be one of"]),
        ("no_such_module:build", ["there is no module 'no_such_module' next to params.yaml"]),
        ("../own:build", ["it must be one of"]),
        ("x" * 600 + ":build", ["model.name has 606 characters; it must be"]),
    ],
)
def test_unknown_models_are_rejected(name: str, fragments: list[str]) -> None:
    (line,) = model_problems(name)
    assert [fragment for fragment in fragments if fragment not in line] == []


def test_keras_applications_are_listed_completely() -> None:
    import keras

    real = [
        name for name in dir(keras.applications) if name[0].isupper() and callable(getattr(keras.applications, name))
    ]
    assert keras_applications() == sorted(real)


@pytest.mark.parametrize(
    ("source", "fragment"),
    [
        ("def buidl(shape, classes): ...", "own.py does not define 'build'; did you mean 'buidl'?"),
        ("x = 1", "own.py does not define 'build'"),
        ("def build(:", "own.py is not valid Python"),
        ("def f():\n    build = 1", "own.py does not define 'build'"),
        ("print(build)", "own.py does not define 'build'"),
    ],
)
def test_invalid_user_model_is_rejected(project: Path, source: str, fragment: str) -> None:
    (project / "own.py").write_text(source)
    (line,) = model_problems("own:build")
    assert fragment in line
    assert "\n" not in line


@pytest.mark.parametrize("source", [b"def build(): ...\0", b"\xff\xfe", b"x = " + b"[" * 3000 + b"]" * 3000])
def test_user_model_that_cannot_be_parsed_is_rejected(project: Path, source: bytes) -> None:
    (project / "own.py").write_bytes(source)
    (line,) = model_problems("own:build")
    assert "own.py is not valid Python" in line


@pytest.mark.parametrize(
    "source",
    [
        *("def build(shape, classes): ...", "def build(shape, classes, width=8, *, depth=2): ..."),
        *("def build(*arguments): ...", "def build(shape, /, classes=10, **options): ..."),
        *("import functools\n@functools.cache\ndef build(): ...", "build = print", "build: object = print"),
        *("first, build = 1, print", "from os import path as build", "from os import *", "def __getattr__(name): ..."),
        "try:\n    from x import build\nexcept ImportError:\n    build = print",
        *("if 1 > 0:\n    def build(shape, classes): ...", "class build: ..."),
    ],
)
def test_valid_user_model_is_accepted(project: Path, source: str) -> None:
    (project / "package").mkdir()
    (project / "package" / "own.py").write_text(source)
    assert model_problems("package.own:build") == []


def test_unusable_directories_are_rejected(project: Path) -> None:
    (project / "file").write_text("")
    (project / "empty").mkdir()
    (project / "hidden" / ".git").mkdir(parents=True)
    expected: dict[str, Any] = {
        "no_such": "which does not exist; create it with a folder of images",
        "~nosuchuser/x": "which does not exist",
        "x" * 5000: "which does not exist",
        "file": "which is not a folder",
        "empty": "which holds no folders",
        "hidden": "which holds no folders",
    }
    for name, fragment in expected.items():
        (line,) = folder_problems(name)
        assert line.startswith(f"data.path is '{name[:50]}")
        assert fragment in line


@pytest.mark.skipif(os.geteuid() == 0, reason="root can read every file")
def test_unreadable_directory_is_rejected(project: Path) -> None:
    (project / "locked").mkdir(mode=0)
    (line,) = folder_problems("locked")
    assert "may not be read" in line


def test_directory_of_class_folders_is_accepted(project: Path) -> None:
    (project / "pictures" / "cat").mkdir(parents=True)
    assert folder_problems("pictures") == []
    assert input_problems(Params(data=DataParams(source="digits", path="no_such"))) == []
