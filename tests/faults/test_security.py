"""What strangers' files and names can do: nothing but be refused."""

from __future__ import annotations

import ast
import configparser
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import stages
from stages.errors import without_password

# What runs code, or a shell, or reads a format that can.
FORBIDDEN_CALLS = {
    *("eval", "exec", "os.system", "os.popen", "pickle.load", "pickle.loads", "joblib.load", "marshal.loads"),
    *("yaml.unsafe_load", "yaml.full_load", "torch.load", "dill.load", "cloudpickle.load", "subprocess.getoutput"),
}


def calls(root: Path) -> Iterator[tuple[Path, str, dict[str, str]]]:
    """Every call of the program: file, dotted name, and its arguments by keyword as they are written."""
    for path in sorted((root / "stages").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                keywords = {str(word.arg): ast.unparse(word.value) for word in node.keywords}
                yield path.relative_to(root), ast.unparse(node.func), keywords


def test_nothing_is_unpickled_evaluated_or_given_to_a_shell(root: Path) -> None:
    found = [
        (path, name) for path, name, words in calls(root) if name in FORBIDDEN_CALLS or words.get("shell") == "True"
    ]
    assert found == []


def test_arrays_are_read_without_pickle(root: Path) -> None:
    loads = [(path, words) for path, name, words in calls(root) if name in ("np.load", "numpy.load")]
    assert loads
    assert [path for path, words in loads if words.get("allow_pickle") != "False"] == []


def test_models_are_loaded_in_safe_mode(root: Path) -> None:
    loads = [(path, words) for path, name, words in calls(root) if name.split(".")[-1] == "load_model"]
    assert [path for path, words in loads if words.get("safe_mode") != "True"] == []


def test_yaml_is_read_by_safe_loaders(root: Path) -> None:
    loads = [(path, words.get("Loader", "")) for path, name, words in calls(root) if name == "yaml.load"]
    assert loads == [(Path("stages/params/loading.py"), "_StrictKeyLoader")]
    from stages.params.loading import _StrictKeyLoader

    assert issubclass(_StrictKeyLoader, yaml.SafeLoader)


def test_pictures_are_opened_by_listed_formats_alone(root: Path) -> None:
    opened = [(path, words) for path, name, words in calls(root) if name == "Image.open"]
    assert [str(path) for path, _ in opened] == ["stages/prepare/decoding.py"]
    assert [words["formats"] for _, words in opened] == ["FORMATS"]


def test_the_report_escapes_what_it_shows(root: Path) -> None:
    environments = [words for _, name, words in calls(root) if name.split(".")[-1] == "Environment"]
    assert environments
    assert [words for words in environments if words.get("autoescape") not in ("True", "select_autoescape()")] == []
    templates = [path.read_text(encoding="utf-8") for path in (root / "stages/compare/templates").iterdir()]
    assert not any("autoescape false" in text for text in templates)


def test_nothing_phones_home(root: Path) -> None:
    settings = configparser.ConfigParser()
    settings.read(root / ".dvc/config")
    told = {name: settings.getboolean("core", name) for name in ("analytics", "check_update")}
    assert told == {"analytics": False, "check_update": False}
    assert stages  # sets it before MLflow can be imported
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"
    from mlflow.telemetry.client import get_telemetry_client

    assert get_telemetry_client() is None


def test_the_readme_binds_the_server_to_this_machine(root: Path) -> None:
    lines = [line for line in (root / "README.md").read_text(encoding="utf-8").splitlines() if "mlflow server" in line]
    started = [line for line in lines if "--backend-store-uri" in line and not line.startswith("sqlite")]
    commands = [line for line in started if "mlflow gc" not in line]
    assert commands
    for line in commands:
        assert "--host 127.0.0.1" in line
        assert "MLFLOW_DISABLE_TELEMETRY=true" in line
        assert "MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false" in line
        assert "MLFLOW_ALLOW_PICKLE_DESERIALIZATION=false" in line


@pytest.mark.parametrize(
    "name", ["a;touch hacked", "$(touch hacked)", "`touch hacked`", "x && touch hacked", "../../hacked", "a b"]
)
def test_a_name_reaches_no_shell(name: str, root: Path, tmp_path: Path) -> None:
    """`train` waits for `environment`, which refuses the name: DVC, which puts it into a command, never runs that."""
    for part in ("dvc.yaml", ".dvcignore"):
        shutil.copy(root / part, tmp_path / part)
    (tmp_path / "stages").symlink_to(root / "stages")
    (tmp_path / ".dvc").mkdir()
    (tmp_path / ".dvc" / "config").write_text("[core]\n    no_scm = true\n    analytics = false\n")
    params = yaml.safe_load((root / "params.yaml").read_text(encoding="utf-8"))
    params["variants"][name] = params["variants"]["float32"]
    params["train"] |= {"variants": ["float32", name], "seeds": [0]}
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
    said = done.stdout + done.stderr
    assert done.returncode != 0
    assert f"variants.{name}: a variant's name is small letters, digits and _" in said
    assert "Running stage 'train" not in said
    assert "Running stage 'prepare" not in said
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
def test_no_password_is_shown(text: str, shown: str) -> None:
    assert without_password(text) == shown
