"""What `environment` refuses before anything is touched: wrong parameters, and what they name and is not there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from stages.environment import fingerprint
from tests.faults.cases import Arrange, Case
from tests.params.test_loading import NOT_A_PARAMETER_FILE, ONE_WRONG

CLOSED = "127.0.0.1:9"  # the port of a service that nobody runs any more
HOSTILE_NAMES = (
    "a;touch hacked",
    "$(touch hacked)",
    "a`touch hacked`",
    "a|touch hacked",
    "../outside",
    "a b",
    "A",
    "_a",
)


def refused(name: str, fragment: str, params: dict[str, Any] | str | None = None, **others: Any) -> Case:
    """A case that `environment` must refuse with status 2."""
    return Case(name, "environment", (fragment,), params=params or {}, **{"status": 2, **others})


def of_folder(name: str, fragment: str, arrange: Arrange) -> Case:
    return refused(name, f"data.path is 'pictures', {fragment}", _PICTURES, arrange=arrange)


def of_store(name: str, uri: str, fragment: str, **others: Any) -> Case:
    return refused(name, fragment, {"tracking": {"uri": uri}}, **others)


def of_own_model(name: str, source: bytes, fragment: str) -> Case:
    def arrange(root: Path, _: pytest.MonkeyPatch) -> None:
        (root / "own.py").write_bytes(source)

    return refused(f"own model: {name}", fragment, {"model": {"name": "own:build"}}, arrange=arrange)


def _file(root: Path, _: pytest.MonkeyPatch) -> None:
    (root / "pictures").write_text("")


def _empty(root: Path, _: pytest.MonkeyPatch) -> None:
    (root / "pictures").mkdir()


def _hidden(root: Path, _: pytest.MonkeyPatch) -> None:
    (root / "pictures" / ".thumbnails").mkdir(parents=True)


def _locked(root: Path, _: pytest.MonkeyPatch) -> None:
    (root / "pictures").mkdir(mode=0)


def _no_params(root: Path, _: pytest.MonkeyPatch) -> None:
    (root / "params.yaml").unlink()


def _params_folder(root: Path, _: pytest.MonkeyPatch) -> None:
    (root / "params.yaml").unlink()
    (root / "params.yaml").mkdir()


def _params_bytes(root: Path, _: pytest.MonkeyPatch) -> None:
    (root / "params.yaml").write_bytes(b"\xff\xfe\x00")


def _data_file(root: Path, _: pytest.MonkeyPatch) -> None:
    (root / "data").write_text("")


def _environment_folder(root: Path, _: pytest.MonkeyPatch) -> None:
    (root / "data" / "environment.json").mkdir(parents=True)


def _store_folder(root: Path, _: pytest.MonkeyPatch) -> None:
    (root / "mlflow.db").unlink()
    (root / "mlflow.db").mkdir()


def _store_text(root: Path, _: pytest.MonkeyPatch) -> None:
    (root / "mlflow.db").write_text("no database at all" * 100)


def _store_variable(_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "mlruns")


def _as_root() -> str | None:
    return "root may read everything" if os.geteuid() == 0 else None


def _with_gpu() -> str | None:
    return "this machine has a GPU" if fingerprint.gpus() else None


_PICTURES = {"data": {"source": "folder", "path": "pictures"}}
_SECRET = "http://user:s3cret@" + CLOSED

CASES = [
    *(refused(f"params.yaml: {name}", text[1], text[0]) for name, text in ONE_WRONG.items()),
    *(
        refused(f"params.yaml is {name}", fragment, text or " ")
        for name, (text, fragment) in NOT_A_PARAMETER_FILE.items()
    ),
    refused("params.yaml is missing", "params.yaml is missing: run from the root", arrange=_no_params),
    refused("params.yaml is a folder", "params.yaml cannot be read (", arrange=_params_folder),
    refused("params.yaml is no text", "it must be a UTF-8 text file", arrange=_params_bytes),
    Case(
        "params.yaml: five mistakes, five lines",
        "environment",
        ("data.color is", "train.epochs is 0", "profile.rouns is unknown", "compare.gate is", "model.name is 'cnm'"),
        {
            "data": {"color": "blue"},
            "train": {"epochs": 0},
            "compare": {"gate": "maybe"},
            "profile": {"rouns": 3},
            "model": {"name": "cnm"},
        },
        status=2,
    ),
    *(
        refused(
            f"a variant is called {name}",
            f"variants.{name}: a variant's name is small letters, digits and _",
            {
                "variants": {"float32": {"policy": "float32"}, name: {"policy": "float32"}},
                "train": {"variants": ["float32"]},
            },
        )
        for name in HOSTILE_NAMES
    ),
    refused(
        "a variant has a reserved name",
        "variants.control: the name is taken",
        {
            "variants": {"float32": {"policy": "float32"}, "control": {"policy": "float32"}},
            "train": {"variants": ["float32"]},
        },
    ),
    refused("a seed holds a command", "train.seeds[0] is '0;touch hacked'", {"train": {"seeds": ["0;touch hacked"]}}),
    refused("a listed variant has no entry", "train.variants names 'x'", {"train": {"variants": ["float32", "x"]}}),
    refused("an unknown model", "did you mean 'resnet20'?", {"model": {"name": "resnet21"}}),
    refused(
        "an unknown model of Keras",
        "keras.applications has no 'ResNet5'",
        {"model": {"name": "keras.applications.ResNet5"}},
    ),
    refused("a model's module is missing", "there is no module 'nowhere'", {"model": {"name": "nowhere:build"}}),
    refused("a model's name is a path", "model.name is '../own:build'", {"model": {"name": "../own:build"}}),
    of_own_model("another name", b"def biuld(shape, classes): ...", "own.py defines no 'build'; did you mean 'biuld'?"),
    of_own_model("not Python", b"def build(:", "own.py is not valid Python"),
    of_own_model("not text", b"\xff\xfe", "own.py is not valid Python"),
    of_own_model("a null byte", b"def build(): ...\0", "own.py is not valid Python"),
    refused("data.path is missing", "data.path is 'pictures', which does not exist", _PICTURES),
    of_folder("data.path is a file", "which is not a folder", _file),
    of_folder("data.path is empty", "which holds no folders", _empty),
    of_folder("data.path holds hidden folders alone", "which holds no folders", _hidden),
    Case(
        "data.path may not be read",
        "environment",
        ("which may not be read by this user",),
        _PICTURES,
        _locked,
        status=2,
        skip=_as_root,
    ),
    refused(
        "a GPU is required and there is none",
        "train.require_gpu is true, and there is no NVIDIA driver",
        {"train": {"require_gpu": True}},
        skip=_with_gpu,
    ),
    of_store("the store is a folder's name", "mlruns", "tracking.uri is 'mlruns': it must be a URI"),
    of_store("the store is a file: URI", "file:///tmp/mlruns", "it must be a URI such as sqlite:///mlflow.db"),
    of_store("the store's scheme is unknown", "ftp://host/x", "it must be a URI such as sqlite:///mlflow.db"),
    of_store("the store's folder is missing", "sqlite:////nowhere/x.db", "the folder /nowhere does not exist"),
    of_store("the store's port is none", "http://127.0.0.1:99999", "cannot be reached"),
    of_store("the server is not there", f"http://{CLOSED}", f"http://{CLOSED} cannot be reached (Connection refused)"),
    of_store("the server is not there, and the URI holds a password", _SECRET, f"tracking.uri is 'http://{CLOSED}'"),
    of_store("the database is not there", f"postgresql://user:s3cret@{CLOSED}/x", f"postgresql://{CLOSED}/x cannot be"),
    of_store("a misspelt URI holds a password", "htp://user:s3cret@host", "tracking.uri is 'htp://host'"),
    refused(
        "a URI with a password stands where a section should",
        "tracking is 'http://host'",
        "tracking: http://u:s3cret@host",
    ),
    refused("the store's variable is none", "tracking.uri is null: it must be a URI", arrange=_store_variable),
    refused("the store is no database", "mlflow.db is no SQLite database", arrange=_store_text),
    Case(
        "the store is a folder", "environment", ("mlflow.db cannot be used as a tracking store",), arrange=_store_folder
    ),
    Case("data is a file", "environment", ("data/environment.json: cannot be written (",), arrange=_data_file),
    Case(
        "data/environment.json is a folder",
        "environment",
        ("data/environment.json: cannot be written (Is a directory)",),
        arrange=_environment_folder,
    ),
]
