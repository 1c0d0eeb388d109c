"""The user's files are as they were, whatever a sealed process does to them, and however it ends."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from halfstep.system import sealing

SEAL = """
import os, shutil, signal, sys, time
from pathlib import Path
from halfstep.system import native_writes, sealing
root = Path(sys.argv[1])
os.chdir(root.parents[1])
sealing.seal(root, [Path.cwd()])
"""
CHANGES = {
    "write": "open('model.txt', 'w').write('new')",
    "append": "open('model.txt', 'a').write('new')",
    "in place": "with open('model.txt', 'r+b') as f: f.write(b'X')",
    "by a descriptor": "os.write(os.open('model.txt', os.O_WRONLY | os.O_TRUNC), b'new')",
    "by another name": "open('link.txt', 'w').write('new')",
    "remove": "os.remove('model.txt')",
    "remove, and make again": "os.remove('model.txt'); open('model.txt', 'w').write('new')",
    "remove a folder": "shutil.rmtree('folder')",
    "remove an empty folder": "os.rmdir('empty')",
    "a folder of that name": "os.remove('model.txt'); os.mkdir('model.txt'); open('model.txt/a', 'w').write('new')",
    "rename": "os.rename('model.txt', 'other.txt')",
    "rename a folder": "os.rename('folder', 'other'); open('other/inner.txt', 'w').write('new')",
    "replace": "open('t', 'w').write('new'); os.replace('t', 'model.txt')",
    "replace a link": "os.remove('link.txt'); open('link.txt', 'w').write('new')",
    "link": "os.symlink('model.txt', 'second'); os.link('model.txt', 'third')",
    "copy": "shutil.copy('folder/inner.txt', 'model.txt')",
    "truncate": "os.truncate('model.txt', 1)",
    "touch": "Path('model.txt').touch(); Path('new.txt').touch()",
    "chmod": "os.chmod('model.txt', 0o600)",
    "new": "os.makedirs('runs/one'); open('runs/one/log', 'w').write('new'); open('new.txt', 'w').write('new')",
    "elsewhere": "os.chdir('folder'); open('../model.txt', 'w').write('new'); open('inner.txt', 'w').write('new')",
    "numpy": "import numpy as np; np.save('array.npy', np.zeros(9)); np.memmap('model.txt', mode='r+')[0] = 0",
    "h5py": "import h5py as h; native_writes.report(); h.File('model.txt', 'w').close(); h.File('new.h5', 'a').close()",
    "many": "[open(f'f{i}', 'w').write('new') for i in range(300)]",
}
NATIVE = """
import h5py, tensorflow as tf, keras
gfile = tf.io.gfile
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
for round in range(2):
    model.save("model.keras"); model.save("model.h5"); model.save_weights("own.weights.h5"); model.export("exported")
    gfile.GFile("model.txt", "w").write("new"); gfile.makedirs("a/b"); gfile.copy("model.txt", "a/b/c", overwrite=True)
    tf.train.Checkpoint(v=tf.Variable(1.0)).write("folder/checkpoint")
    tf.train.Checkpoint(v=tf.Variable(1.0)).save("ck")
    tf.summary.create_file_writer("logs").flush(); tf.summary.create_file_writer("folder").flush()
    with h5py.File("data.h5", "a") as file: file.attrs["x"] = 1
gfile.remove("model.txt"); gfile.rename("folder", "moved"); gfile.rmtree("empty")
"""


def state_of(folder: Path) -> dict[str, tuple[object, ...]]:
    """Of everything but the workspace: contents, times and rights."""
    state: dict[str, tuple[object, ...]] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if name.startswith(".halfstep"):
            continue
        info = path.lstat()
        content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None
        times = (info.st_mtime_ns,) if path.is_file() and not path.is_symlink() else ()
        state[name] = (content, path.is_symlink() and path.readlink(), info.st_mode, *times)
    return state


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A workspace of `judge` in a folder with some files."""
    for name in ("folder", "empty", "logs", ".halfstep/judge"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("model.txt", "folder/inner.txt", "model.keras", "data.h5", "folder/checkpoint.index", "ck-1.index"):
        (tmp_path / name).write_text(f"what {name} had")
    (tmp_path / "data.h5").unlink()
    (tmp_path / "link.txt").symlink_to("model.txt")
    return tmp_path / ".halfstep/judge"


def start(workspace: Path, code: str) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-c", SEAL + code, str(workspace)]
    return subprocess.Popen(
        arguments, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": str(Path.cwd())}
    )


def run(workspace: Path, code: str) -> None:
    process = start(workspace, code)
    process.communicate()
    assert process.returncode == 0


@pytest.mark.parametrize("code", CHANGES.values(), ids=CHANGES)
def test_everything_is_put_back(workspace: Path, code: str) -> None:
    folder = workspace.parents[1]
    before = state_of(folder)
    run(workspace, f"{code}\nassert Path('.').exists()\nos._exit(0)")
    changed = state_of(folder)
    paths = sealing.undo(workspace)
    assert state_of(folder) == before != changed
    assert paths
    assert sealing.undo(workspace) == []


def test_what_c_plus_plus_writes_is_put_back(workspace: Path) -> None:
    folder = workspace.parents[1]
    before = state_of(folder)
    run(
        workspace,
        f"os.environ['TF_CPP_MIN_LOG_LEVEL'] = '3'{NATIVE.replace('gfile = ', 'native_writes.report(); gfile = ')}",
    )
    assert state_of(folder) != before
    assert str(folder / "model.keras") in sealing.undo(workspace)
    assert state_of(folder) == before
    assert (workspace / sealing.WRITTEN / str(folder).lstrip("/") / "exported/saved_model.pb").is_file()


def test_killed_process_leaves_nothing_at_the_next_start(workspace: Path) -> None:
    folder = workspace.parents[1]
    before = state_of(folder)
    process = start(
        workspace,
        "open('model.txt', 'w').write('new'); shutil.rmtree('folder'); print('done', flush=True); time.sleep(60)",
    )
    assert process.stdout is not None
    process.stdout.readline()
    assert sealing.undo(workspace) == []  # it still runs
    process.send_signal(signal.SIGKILL)
    process.wait()
    run(workspace, "assert open('model.txt').read() == 'what model.txt had'")
    assert state_of(folder) == before


def test_last_of_several_processes_puts_back(workspace: Path) -> None:
    """The second one finds what the first has written, and neither takes that for the user's."""
    folder = workspace.parents[1]
    before = state_of(folder)
    first = start(
        workspace, "open('model.txt', 'w').write('1'); open('n', 'w').write('1'); print('', flush=True); time.sleep(60)"
    )
    assert first.stdout is not None
    first.stdout.readline()
    run(workspace, "assert open('n').read() == '1'; open('model.txt', 'w').write('2'); open('n', 'w').write('2')")
    assert sealing.undo(workspace) == []
    first.kill()
    first.wait()
    assert [Path(path).name for path in sealing.undo(workspace)] == ["model.txt", "n"]
    assert state_of(folder) == before


def test_what_is_made_before_fit_is_lent_to_the_next_process_and_results_are_not(workspace: Path) -> None:
    make = (
        "os.makedirs('d'); open('d/download', 'w').write('1')\nsealing.reached_fit()\nopen('d/weights', 'w').write('1')"
    )
    folder = workspace.parents[1]
    run(workspace, f"{make}; open('d/download', 'a').write('2')")
    sealing.undo(workspace)
    assert not (folder / "d").exists()
    run(
        workspace,
        "assert open('d/download').read() == '1' and not os.path.exists('d/weights'); os.remove('d/download')",
    )
    sealing.undo(workspace)
    assert not (folder / "d").exists()
    sealing.forget_lent(workspace)
    run(workspace, "assert not os.path.exists('d')")


def test_caches_and_temporary_files_are_not_under_seal(
    workspace: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The workspace is below the temporary folder here: what is in a folder of the user's is sealed all the same."""
    cache, other = tmp_path_factory.mktemp("cache"), tmp_path_factory.mktemp("other")
    monkeypatch.setenv("KERAS_HOME", str(cache))
    run(
        workspace, f"[open(f'{{d}}/new', 'w').write('1') for d in ({str(cache)!r}, {str(other)!r}, {str(workspace)!r})]"
    )
    assert sealing.undo(workspace) == []
    assert all((place / "new").exists() for place in (cache, other, workspace))


def test_file_of_more_than_a_gigabyte_is_named(workspace: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with (workspace.parents[1] / "model.txt").open("wb") as file:
        file.truncate(sealing.MAX_BYTES + 1)
    run(workspace, "open('model.txt', 'r+').close()")
    assert "has more than 1 GB and is written by your code" in capfd.readouterr().err
    assert sealing.undo(workspace) == []


def test_what_cannot_be_put_back_stays_for_the_next_time(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = workspace.parents[1]
    before = state_of(folder)
    run(workspace, "open('model.txt', 'w').write('new'); os.remove('folder/inner.txt')")
    move = shutil.move

    def refuse(source: str, target: str) -> str:
        if target.endswith("model.txt"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return str(move(source, target))

    monkeypatch.setattr(shutil, "move", refuse)
    assert sealing.undo(workspace) == [str(folder / "folder/inner.txt")]
    assert "model.txt is not put back yet (No space left on device)" in capfd.readouterr().err
    monkeypatch.undo()
    assert sealing.undo(workspace) == [str(folder / "model.txt")]
    assert state_of(folder) == before
    assert sealing.changed_paths(workspace) == [str(folder / "folder/inner.txt"), str(folder / "model.txt")]


def test_line_for_the_user() -> None:
    folder = Path("/home/u")
    assert sealing.said([], folder) == ""
    assert sealing.said(["/home/u/a", "/x"], folder).startswith(
        "your code wrote a and 1 more: all is as before, and what is new was moved to .halfstep/written/"
    )


def test_seal_costs_little(workspace: Path) -> None:
    """A file that is changed again is not copied again."""
    began = time.monotonic()
    run(workspace, "for i in range(20_000): open('model.txt', 'w').close()")
    assert time.monotonic() - began < 20
    assert len((workspace / ".halfstep/sealed/journal").read_text().splitlines()) == 1
