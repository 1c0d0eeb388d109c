from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from stages.environment.named import keras_applications, missing_things, own_model_file
from stages.params import DataParams, ModelParams, Params, TrackingParams


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def of_model(name: str) -> list[str]:
    return missing_things(Params(model=ModelParams(name=name)))


def of_folder(path: str) -> list[str]:
    return missing_things(Params(data=DataParams(source="folder", path=path)))


@pytest.mark.parametrize("name", ["cnn", "resnet20", "resnet50", "keras.applications.MobileNetV2"])
def test_known_models(name: str) -> None:
    assert of_model(name) == []


@pytest.mark.parametrize(
    ("name", "fragments"),
    [
        ("resnet21", ["model.name is 'resnet21'; it must be one of cnn, resnet20,", "did you mean 'resnet20'?"]),
        ("keras.applications.ResNet51", ["keras.applications has no 'ResNet51'", "did you mean 'ResNet"]),
        ("keras.applications.", ["keras.applications has no ''"]),
        ("keras.applications.resnet", ["keras.applications has no 'resnet'"]),
        ("own:", ["model.name is 'own:'; it must be one of"]),
        ("no_such_module:build", ["there is no module 'no_such_module' beside params.yaml"]),
        ("../own:build", ["it must be one of"]),
    ],
)
def test_unknown_models(name: str, fragments: list[str]) -> None:
    (line,) = of_model(name)
    assert [fragment for fragment in fragments if fragment not in line] == []


def test_the_listing_of_keras_applications_is_the_real_one() -> None:
    import keras

    real = [
        name for name in dir(keras.applications) if name[0].isupper() and callable(getattr(keras.applications, name))
    ]
    assert keras_applications() == sorted(real)


@pytest.mark.parametrize(
    ("source", "fragment"),
    [
        ("def buidl(shape, classes): ...", "own.py defines no 'build'; did you mean 'buidl'?"),
        ("x = 1", "own.py defines no 'build'"),
        ("def build(:", "own.py is not valid Python"),
    ],
)
def test_ones_own_model_that_cannot_work(project: Path, source: str, fragment: str) -> None:
    (project / "own.py").write_text(source)
    (line,) = of_model("own:build")
    assert fragment in line
    assert "\n" not in line


def test_ones_own_model_with_a_null_byte(project: Path) -> None:
    (project / "own.py").write_bytes(b"def build(): ...\0")
    (line,) = of_model("own:build")
    assert "own.py is not valid Python" in line


@pytest.mark.parametrize(
    "source", ["def build(shape, classes): ...", "build = print", "from os import path as build", "class build: ..."]
)
def test_ones_own_model_that_is_there(project: Path, source: str) -> None:
    (project / "package").mkdir()
    (project / "package" / "own.py").write_text(source)
    assert of_model("package.own:build") == []
    assert own_model_file("package.own:build") == project / "package" / "own.py"


def test_a_built_in_model_has_no_file_of_ones_own() -> None:
    assert own_model_file("cnn") is None


def test_folders_that_cannot_be_used(project: Path) -> None:
    (project / "file").write_text("")
    (project / "empty").mkdir()
    (project / "hidden" / ".git").mkdir(parents=True)
    expected: dict[str, Any] = {
        "no_such": "which does not exist; put a folder of images",
        "file": "which is not a folder",
        "empty": "which holds no folders",
        "hidden": "which holds no folders",
    }
    for name, fragment in expected.items():
        (line,) = of_folder(name)
        assert line.startswith(f"data.path is '{name}'")
        assert fragment in line


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_may_not_be_read(project: Path) -> None:
    (project / "locked").mkdir(mode=0)
    (line,) = of_folder("locked")
    assert "may not be read" in line


def test_a_folder_of_class_folders(project: Path) -> None:
    (project / "pictures" / "cat").mkdir(parents=True)
    assert of_folder("pictures") == []
    assert missing_things(Params(data=DataParams(source="digits", path="no_such"))) == []


def test_everything_missing_is_listed() -> None:
    params = Params(
        data=DataParams(source="folder", path="no_such"),
        model=ModelParams(name="resnet21"),
        tracking=TrackingParams(uri="mlruns"),
    )
    assert [line.split(" is ")[0] for line in missing_things(params)] == ["data.path", "model.name", "tracking.uri"]
