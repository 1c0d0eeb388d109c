"""What `environment` rejects before any file is changed: invalid parameters, and missing things that they name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from halfstep.machine import fingerprint
from tests.faults.cases import Case

CLOSED = "127.0.0.1:9"  # no service listens on this port


def rejected(name: str, fragment: str, params: dict[str, Any] | str | None = None, **others: Any) -> Case:
    """A case that `environment` must reject with status 2."""
    return Case(name, "environment", (fragment,), params=params or {}, **{"status": 2, **others})


def bad_store(name: str, uri: str, fragment: str, **others: Any) -> Case:
    return rejected(name, fragment, {"tracking": {"uri": uri}}, **others)


def unreachable(name: str, uri: str, shown: str | None = None) -> Case:
    """A store that does not answer: the first stage that logs says so."""
    said = (f"the tracking store {shown or uri} cannot be used",)
    return Case(name, "prepare", said, {"tracking": {"uri": uri}})


def _no_params(root: Path, _: pytest.MonkeyPatch) -> None:
    (root / "params.yaml").unlink()


def _params_folder(root: Path, _: pytest.MonkeyPatch) -> None:
    (root / "params.yaml").unlink()
    (root / "params.yaml").mkdir()


def _data_file(root: Path, _: pytest.MonkeyPatch) -> None:
    (root / "data").write_text("")


def _environment_folder(root: Path, _: pytest.MonkeyPatch) -> None:
    (root / "data" / "environment.json").mkdir(parents=True)


def _store_folder(root: Path, _: pytest.MonkeyPatch) -> None:
    (root / "mlflow.db").unlink()
    (root / "mlflow.db").mkdir()


def _store_variable(_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "mlruns")


def _with_gpu() -> str | None:
    return "this machine has a GPU" if fingerprint.gpus() else None


_SECRET = "http://user:s3cret@" + CLOSED


CASES = [
    rejected("params.yaml is missing", "params.yaml is missing", arrange=_no_params),
    rejected("params.yaml is a folder", "params.yaml cannot be read (", arrange=_params_folder),
    rejected(
        "the name of a variant contains a line break",
        r"variants.a\nb: the name of a variant has lowercase letters",
        'variants: {"a\\nb": {policy: float32}, float32: {policy: float32}}\ntrain: {variants: [float32]}',
    ),
    bad_store("the store has an unknown user", "sqlite:///~nosuchuser/x.db", "~nosuchuser does not exist; create it"),
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
    rejected(
        "a GPU is required and missing",
        "train.require_gpu is true, and no NVIDIA driver",
        {"train": {"require_gpu": True}},
        skip=_with_gpu,
    ),
    unreachable("the port of the store is invalid", "http://127.0.0.1:99999"),
    unreachable("the server is missing, and the URI has a password", _SECRET, f"http://{CLOSED}"),
    unreachable("the database is missing", f"postgresql://user:s3cret@{CLOSED}/x", f"postgresql://{CLOSED}/x"),
    bad_store("a misspelt URI has a password", "htp://user:s3cret@host", "tracking.uri is 'htp://host'"),
    rejected(
        "the environment variable of the store is invalid",
        "tracking.uri is null, and MLFLOW_TRACKING_URI is 'mlruns': it must be a URI",
        arrange=_store_variable,
    ),
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
