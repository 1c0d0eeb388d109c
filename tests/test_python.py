"""What a user sees who runs a stage with another Python than that of the environment."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

import halfstep
from tests.programs import STAGES, module_of

COMMANDS = (*map(module_of, STAGES), "halfstep trace", "halfstep params")


@pytest.mark.parametrize("command", COMMANDS)
def test_python_without_the_packages_gives_one_line(command: str, root: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-S", "-m", *command.split()],  # without site-packages
        env=os.environ | {"PYTHONPATH": str(root)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    (line,) = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (1, "")
    assert line.startswith(f"python is '{sys.executable}', which does not have click and ")
    assert "activate the environment of halfstep (`. .venv/bin/activate`)" in line
    assert list(tmp_path.iterdir()) == []


CTRL_C = """
import os, signal, sys

class Finder:
    def find_spec(self, name, *_):
        if name == "filelock":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder())
"""


def test_ctrl_c_while_the_packages_are_looked_for_gives_one_line(root: Path, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(CTRL_C)
    done = subprocess.run(
        [sys.executable, "-m", "halfstep", "params"],
        env=os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{root}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


def test_import_by_another_program_is_left_alone(root: Path) -> None:
    subprocess.run([sys.executable, "-S", "-c", "import halfstep, stages"], cwd=root, check=True, capture_output=True)


def test_all_dependencies_are_looked_for(root: Path) -> None:
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = {plain(re.split(r"[>=]", line)[0]) for line in project["dependencies"]}
    owners = packages_distributions()
    distributions = {plain(owner) for name in halfstep._PACKAGES for owner in owners[name]}
    assert wanted - {"dvc", "tensorboardpluginprofile"} <= distributions


@pytest.mark.parametrize(
    ("file", "extras"),
    [("requirements.txt", ()), ("requirements-dev.txt", ("dev", "serve")), ("requirements-fleet.txt", ("fleet",))],
)
def test_lock_file_pins_all_dependencies(file: str, extras: tuple[str, ...], root: Path) -> None:
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = [project["optional-dependencies"][extra] for extra in extras]
    if not extras:  # the others are installed on top of it
        groups.append(project["dependencies"])
    wanted = {plain(re.split(r"[>=]", line)[0]) for group in groups for line in group}
    pinned = re.findall(r"^([\w.-]+)(?:\[[\w,]+\])?==", (root / file).read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert wanted <= {plain(name) for name in pinned}


def plain(name: str) -> str:
    return re.sub(r"[-_.]", "", name).lower()


def test_citation_has_the_version(root: Path) -> None:
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert f"\nversion: {project['version']}\n" in (root / "CITATION.cff").read_text(encoding="utf-8")
