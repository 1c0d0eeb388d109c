"""Folders that are overlays to a command: whatever writes there, they stay as they were."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from halfstep.system import overlays


def run(folder: Path, covered: list[str], text: str) -> str:
    """Runs a shell command to which `covered` are overlays. Returns what it prints."""
    caches = {
        str(folder / "cache"): str(folder / "home/shown/kept"),
        str(folder / "home/none"): f"{folder}/home/shown/none",
    }
    prefix = overlays.command_of(covered, [f"{folder}/home/shown"], caches, folder / "layers")
    command = [*prefix, "/bin/sh", "-c", text]
    done = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(Path.cwd())},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "a:b, c"  # both have a meaning among the options of a mount
    for name in ("home/shown", "cache", "layers"):
        (folder / name).mkdir(parents=True)
    for name in ("home/changed", "home/removed", "home/same", "cache/old"):
        (folder / name).write_text("before")
    return folder


def test_what_a_command_writes_is_thrown_away_but_where_it_is_shown(folder: Path) -> None:
    covered = [str(folder / "home")]
    text = "cd home && cat same && rm removed && echo x >> changed && echo new > new && echo y > shown/result && pwd"
    said = run(folder, covered, text)
    if "no overlays here" in said:
        pytest.skip(said)
    assert said == f"before{folder}/home\n"
    assert sorted(path.name for path in (folder / "home").iterdir()) == ["changed", "removed", "same", "shown"]
    assert {(folder / "home" / name).read_text() for name in ("changed", "removed", "same")} == {"before"}
    assert (folder / "home/shown/result").read_text() == "y\n"
    found = dict(overlays.written(covered, folder / "layers"))
    assert {Path(path).name: new and new.read_text() for path, new in found.items()} == {
        "changed": "beforex\n",
        "new": "new\n",
        "removed": None,
    }
    overlays.remove(folder / "layers")
    assert not (folder / "layers").exists()


def test_cache_stays_as_it_was_and_what_was_added_is_there_in_the_next_run(folder: Path) -> None:
    covered = [str(folder / "home")]
    said = run(folder, covered, "echo x > cache/new; echo y > home/none/new; echo z > cache/old")
    if "no overlays here" in said:
        pytest.skip(said)
    overlays.remove(folder / "layers")
    assert [path.name for path in (folder / "cache").iterdir()] == ["old"]
    assert (folder / "cache/old").read_text() == "before"
    assert run(folder, covered, "cat cache/new home/none/new cache/old") == "x\ny\nz\n"


def test_command_runs_where_the_kernel_refuses(folder: Path) -> None:
    said = run(folder, [str(folder / "home"), str(folder / "missing")], "echo x > home/new")
    assert "judge: no overlays here (No such file or directory)" in said
    assert (folder / "home/new").read_text() == "x\n"
