"""Every block of commands in the README runs in a fresh clone, in its order."""

from __future__ import annotations

import os
import re
import site
import subprocess
import venv
from pathlib import Path

import pytest

from tests.pipeline.conftest import SMALL
from tools.benchmarks.checkout import cloned

TESTS = 1  # the block that runs the tests, of which there is one


def blocks(root: Path) -> list[str]:
    return re.findall(r"```bash\n(.*?)```", (root / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL)


def test_clone_is_named_once_it_has_an_address(root: Path) -> None:
    address = re.search(r'^Repository = "(.+)"', (root / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    assert address is None or f"git clone {address[1]}" in blocks(root)[0]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_every_block_of_the_readme_runs(root: Path) -> None:
    """Each in a shell of its own, in the environment that the first one made. Of the tests, the names are collected."""
    commands = blocks(root)
    assert len([block for block in commands if "pytest" in block]) == TESTS
    with cloned("HEAD") as checkout:
        folder = checkout.root
        checkout.configure({name: value for name, value in SMALL.items() if not name.startswith("train.batch")})
        venv.create(
            folder / ".venv", symlinks=True, with_pip=True
        )  # whose pip finds the packages that are here, and downloads none
        (packages,) = (folder / ".venv" / "lib").glob("*/site-packages")
        (packages / "here.pth").write_text("\n".join(site.getsitepackages()))
        own = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "PYTHONPATH")}
        own |= {"PYTEST_ADDOPTS": "--collect-only --quiet", "GIT_AUTHOR_NAME": "A", "GIT_COMMITTER_NAME": "A"}
        own |= {"GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_EMAIL": "a@b"}
        for number, block in enumerate(commands):
            setup = "" if number == 0 else ". .venv/bin/activate\n"
            done = subprocess.run(
                ["bash", "-ec", setup + block], cwd=folder, env=own, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, f"{block}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
            if number == 0:
                assert "Report     data/compare/report.html" in done.stdout
        assert (packages / "_editable_impl_halfstep.pth").read_text().strip() == str(folder)
