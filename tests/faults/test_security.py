"""Untrusted files and names cannot run code."""

from __future__ import annotations

import ast
import configparser
import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import halfstep
from halfstep.errors import without_password


@functools.cache
def calls(root: Path) -> list[tuple[Path, str, dict[str, str]]]:
    """Every call in `halfstep/` and `stages/`: file, dotted name, and the source code of its keyword arguments."""
    found = []
    for path in sorted([*(root / "halfstep").rglob("*.py"), *(root / "stages").rglob("*.py")]):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                arguments = {str(keyword.arg): ast.unparse(keyword.value) for keyword in node.keywords}
                found.append((path.relative_to(root), ast.unparse(node.func), arguments))
    return found


def test_arrays_are_read_without_pickle(root: Path) -> None:
    loads = [(path, keywords) for path, name, keywords in calls(root) if name in ("np.load", "numpy.load")]
    assert loads
    assert [path for path, keywords in loads if keywords.get("allow_pickle") != "False"] == []


def test_models_are_loaded_in_safe_mode(root: Path) -> None:
    loads = [(path, keywords) for path, name, keywords in calls(root) if name.split(".")[-1] == "load_model"]
    assert [path for path, keywords in loads if keywords.get("safe_mode") != "True"] == []


def test_yaml_is_read_with_a_safe_loader(root: Path) -> None:
    assert [path for path, name, _ in calls(root) if name == "yaml.load"] == []
    loaders = [keywords for _, name, keywords in calls(root) if name == "YAML"]
    assert loaders
    # ruamel.yaml's round-trip loader makes no objects either: a tag stays text.
    assert {loader.get("typ") for loader in loaders} <= {"'safe'", "'rt'"}


def test_pictures_are_opened_only_in_listed_formats(root: Path) -> None:
    opened = [(path, keywords) for path, name, keywords in calls(root) if name == "Image.open"]
    assert [str(path) for path, _ in opened] == ["halfstep/prepare/images/decoding.py"]
    assert [keywords["formats"] for _, keywords in opened] == ["FORMATS"]


def test_report_escapes_its_texts(root: Path) -> None:
    made = [keywords for _, name, keywords in calls(root) if name.split(".")[-1] == "Environment"]
    # The README of a served folder is Markdown, in which only names of halfstep's own stand.
    environments = [keywords for keywords in made if "halfstep.serve" not in keywords["loader"]]
    assert len(environments) == len(made) - 1 > 0
    assert [
        keywords for keywords in environments if keywords.get("autoescape") not in ("True", "select_autoescape()")
    ] == []
    templates = [path.read_text(encoding="utf-8") for path in (root / "halfstep/compare/report/templates").iterdir()]
    assert not any("autoescape false" in text for text in templates)


def test_telemetry_is_off(root: Path) -> None:
    settings = configparser.ConfigParser()
    settings.read(root / ".dvc/config")
    switches = {name: settings.getboolean("core", name) for name in ("analytics", "check_update")}
    assert switches == {"analytics": False, "check_update": False}
    assert halfstep  # sets the variable before MLflow can be imported
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"
    from mlflow.telemetry.client import get_telemetry_client

    assert get_telemetry_client() is None


def test_name_does_not_reach_a_shell(root: Path, tmp_path: Path) -> None:
    """DVC puts the name into a command, but `environment` rejects it before DVC runs that command."""
    names = ("a;touch hacked", "$(touch hacked)", "`touch hacked`", "x && touch hacked", "../../hacked", "a b")
    for part in ("dvc.yaml", ".dvcignore"):
        shutil.copy(root / part, tmp_path / part)
    for part in ("halfstep", "stages"):
        (tmp_path / part).symlink_to(root / part)
    (tmp_path / ".dvc").mkdir()
    (tmp_path / ".dvc" / "config").write_text("[core]\n    no_scm = true\n    analytics = false\n")
    params = yaml.safe_load((root / "params.yaml").read_text(encoding="utf-8"))
    params["variants"] |= dict.fromkeys(names, params["variants"]["float32"])
    params["train"] |= {"variants": ["float32", *names], "seeds": [0]}
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(params))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["dvc", "repro"],
        cwd=tmp_path,
        env=os.environ | {"PATH": path, "DVC_SITE_CACHE_DIR": str(tmp_path / "site")},
        capture_output=True,
        text=True,
        check=False,
    )
    output = done.stdout + done.stderr
    assert done.returncode != 0
    for name in names:
        assert f"variants.{name}: the name of a variant has lowercase letters, digits and _" in output
    assert "Running stage 'train" not in output
    assert "Running stage 'prepare" not in output
    assert not list(tmp_path.rglob("hacked"))
    assert not (tmp_path.parent / "hacked").exists()
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://user:s3cret@host:5000/x", "http://host:5000/x"),
        ("postgresql://user:s3/cr?e#t@host/db", "postgresql://host/db"),
        ("https://token@host", "https://host"),
        ("mysql://host/db?user=a&password=s3cret&x=1", "mysql://host/db?user=a&password=***&x=1"),
        ("cannot reach 'http://u:s3cret@h' or http://u:s3cret@i, sorry", "cannot reach 'http://h' or http://i, sorry"),
        ("http://127.0.0.1:5000 says a@b", "http://127.0.0.1:5000 says a@b"),
        ("sqlite:////tmp/mlflow.db", "sqlite:////tmp/mlflow.db"),
    ],
)
def test_passwords_are_removed(text: str, shown: str) -> None:
    assert without_password(text) == shown
