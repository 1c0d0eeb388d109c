"""What `environment` rejects before any file is changed: invalid parameters, and missing things that they name."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from halfstep.machine import fingerprint
from tests.faults.cases import Arrange, Case
from tests.params.test_loading import NOT_A_PARAMETER_FILE, ONE_ERROR
from tests.params.test_reading import HOSTILE

CLOSED = "127.0.0.1:9"  # no service listens on this port
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


def rejected(name: str, fragment: str, params: dict[str, Any] | str | None = None, **others: Any) -> Case:
    """A case that `environment` must reject with status 2."""
    return Case(name, "environment", (fragment,), params=params or {}, **{"status": 2, **others})


def bad_directory(name: str, fragment: str, arrange: Arrange) -> Case:
    return rejected(name, f"data.path is 'pictures', {fragment}", _PICTURES, arrange=arrange)


def bad_store(name: str, uri: str, fragment: str, **others: Any) -> Case:
    return rejected(name, fragment, {"tracking": {"uri": uri}}, **others)


def unreachable(name: str, uri: str, shown: str | None = None) -> Case:
    """A store that does not answer: the first stage that logs says so."""
    said = (f"the tracking store {shown or uri} cannot be used",)
    return Case(name, "prepare", said, {"tracking": {"uri": uri}})


def bad_user_model(name: str, source: bytes, fragment: str) -> Case:
    def arrange(root: Path, _: pytest.MonkeyPatch) -> None:
        (root / "own.py").write_bytes(source)

    return rejected(f"user model: {name}", fragment, {"model": {"name": "own:build"}}, arrange=arrange)


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
    (root / "mlflow.db").write_text("not a database" * 100)


def _store_variable(_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "mlruns")


def _as_root() -> str | None:
    return "root can read every file" if os.geteuid() == 0 else None


def _with_gpu() -> str | None:
    return "this machine has a GPU" if fingerprint.gpus() else None


_PICTURES = {"data": {"source": "folder", "path": "pictures"}}
_SECRET = "http://user:s3cret@" + CLOSED


def _in_folder(path: str) -> dict[str, Any]:
    return {"data": {"source": "folder", "path": path}}


def _with_control(name: str) -> str:
    section, key = name.split(".")
    return f'{section}: {{{key}: "a\\0\\e[2J"}}'


CASES = [
    *(rejected(f"params.yaml: {name}", text[1], text[0]) for name, text in ONE_ERROR.items()),
    *(
        rejected(f"params.yaml is {name}", fragment, text or " ")
        for name, (text, fragment) in NOT_A_PARAMETER_FILE.items()
    ),
    rejected("params.yaml is missing", "params.yaml is missing: run from the root", arrange=_no_params),
    rejected("params.yaml is a folder", "params.yaml cannot be read (", arrange=_params_folder),
    rejected("params.yaml is not a text file", "it must be a UTF-8 text file", arrange=_params_bytes),
    *(rejected(f"params.yaml contains {name}", fragment, text) for name, (text, fragment) in HOSTILE.items()),
    *(
        rejected(f"params.yaml: {name} contains a control character", f"params.yaml: {name} is 'a", _with_control(name))
        for name in ("data.path", "model.name", "compare.baseline", "tracking.experiment", "tracking.uri")
    ),
    rejected("a key contains an escape sequence", r"train.a\x1b[2J\nb is unknown", r'train: {"a\e[2J\nb": 1}'),
    rejected("a section contains an escape sequence", r"a\x1b[2J is unknown", r'{"a\e[2J": 1}'),
    rejected(
        "the name of a variant contains a line break",
        r"variants.a\nb: the name of a variant has lowercase letters",
        'variants: {"a\\nb": {policy: float32}, float32: {policy: float32}}\ntrain: {variants: [float32]}',
    ),
    rejected(
        "data.path has an unknown user",
        "data.path is '~nosuchuser/x', which does not exist",
        _in_folder("~nosuchuser/x"),
    ),
    rejected("data.path is too long", "which does not exist", _in_folder("x" * 5000)),
    rejected(
        "the name of a model is too long",
        "model.name has 606 characters; it must be",
        {"model": {"name": "x" * 600 + ":build"}},
    ),
    bad_user_model("3,000 brackets", b"x = " + b"[" * 3000 + b"]" * 3000, "own.py is not valid Python"),
    bad_store("the store has an unknown user", "sqlite:///~nosuchuser/x.db", "~nosuchuser does not exist; create it"),
    bad_store("the store has a misspelt option", "sqlite:///x.db?tiemout=5", "the only option of a SQLite store"),
    bad_store("the store is in memory", "sqlite:///:memory:", "a SQLite store must be a file"),
    bad_store("the store is a URI of SQLite", "sqlite:///file:x.db?uri=true", "a SQLite store must be a file"),
    bad_store("the path of the store has a null byte", "sqlite:///a%00b.db", "a SQLite store must be a file"),
    bad_store("the path of the store is too long", f"sqlite:///{'x' * 600}/x.db", "does not exist; create it"),
    Case(
        "params.yaml: five errors, five lines",
        "environment",
        ("data.color is", "train.epochs is -1", "profile.rouns is unknown", "compare.gate is", "model.name is 'cnm'"),
        {
            "data": {"color": "blue"},
            "train": {"epochs": -1},
            "compare": {"gate": "maybe"},
            "profile": {"rouns": 3},
            "model": {"name": "cnm"},
        },
        status=2,
    ),
    *(
        rejected(
            f"the name of a variant is {name}",
            f"variants.{name}: the name of a variant has lowercase letters, digits and _",
            {
                "variants": {"float32": {"policy": "float32"}, name: {"policy": "float32"}},
                "train": {"variants": ["float32"]},
            },
        )
        for name in HOSTILE_NAMES
    ),
    rejected(
        "a variant has a reserved name",
        "variants.control: the name is reserved",
        {
            "variants": {"float32": {"policy": "float32"}, "control": {"policy": "float32"}},
            "train": {"variants": ["float32"]},
        },
    ),
    rejected(
        "a seed contains a command", "train.seeds[0] is '0;touch hacked'", {"train": {"seeds": ["0;touch hacked"]}}
    ),
    rejected("a listed variant has no entry", "train.variants contains 'x'", {"train": {"variants": ["float32", "x"]}}),
    rejected("an unknown model", "did you mean 'resnet20'?", {"model": {"name": "resnet21"}}),
    rejected(
        "an unknown model of Keras",
        "keras.applications has no 'ResNet5'",
        {"model": {"name": "keras.applications.ResNet5"}},
    ),
    rejected("the module of a model is missing", "there is no module 'nowhere'", {"model": {"name": "nowhere:build"}}),
    rejected("the name of a model is a path", "model.name is '../own:build'", {"model": {"name": "../own:build"}}),
    bad_user_model(
        "another name", b"def biuld(shape, classes): ...", "own.py does not define 'build'; did you mean 'biuld'?"
    ),
    bad_user_model("not Python", b"def build(:", "own.py is not valid Python"),
    bad_user_model("not text", b"\xff\xfe", "own.py is not valid Python"),
    bad_user_model("a null byte", b"def build(): ...\0", "own.py is not valid Python"),
    rejected("data.path is missing", "data.path is 'pictures', which does not exist", _PICTURES),
    bad_directory("data.path is a file", "which is not a folder", _file),
    bad_directory("data.path is empty", "which holds no folders", _empty),
    bad_directory("data.path has only hidden folders", "which holds no folders", _hidden),
    Case(
        "data.path is not readable",
        "environment",
        ("which may not be read by this user",),
        _PICTURES,
        _locked,
        status=2,
        skip=_as_root,
    ),
    rejected(
        "a GPU is required and missing",
        "train.require_gpu is true, and no NVIDIA driver",
        {"train": {"require_gpu": True}},
        skip=_with_gpu,
    ),
    bad_store("the store is the name of a folder", "mlruns", "tracking.uri is 'mlruns': it must be a URI"),
    bad_store("the store is a file: URI", "file:///tmp/mlruns", "it must be a URI such as sqlite:///mlflow.db"),
    bad_store("the scheme of the store is unknown", "ftp://host/x", "it must be a URI such as sqlite:///mlflow.db"),
    bad_store("the folder of the store is missing", "sqlite:////nowhere/x.db", "the folder /nowhere does not exist"),
    unreachable("the port of the store is invalid", "http://127.0.0.1:99999"),
    unreachable("the server is missing", f"http://{CLOSED}"),
    unreachable("the server is missing, and the URI has a password", _SECRET, f"http://{CLOSED}"),
    unreachable("the database is missing", f"postgresql://user:s3cret@{CLOSED}/x", f"postgresql://{CLOSED}/x"),
    bad_store("a misspelt URI has a password", "htp://user:s3cret@host", "tracking.uri is 'htp://host'"),
    rejected(
        "a URI with a password in place of a section",
        "tracking is 'http://host'",
        "tracking: http://u:s3cret@host",
    ),
    rejected(
        "the environment variable of the store is invalid",
        "tracking.uri is null, and MLFLOW_TRACKING_URI is 'mlruns': it must be a URI",
        arrange=_store_variable,
    ),
    rejected("the store is not a database", "SQLite database", arrange=_store_text),
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
