from __future__ import annotations

import hashlib
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from dvc_data.hashfile.cache import Timeout  # type: ignore[attr-defined]
from dvc_data.hashfile.state import State

from halfstep.inputs import contents
from halfstep.inputs.contents import MEMORY, Contents

DATABASE = MEMORY / "hashes/local/cache.db"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two files that were written long ago."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "pictures"
    folder.mkdir()
    for name in ("a", "b"):
        (folder / name).write_text(name)
        os.utime(folder / name, ns=(10**18, 10**18))
    return folder


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Names of the files that are read."""
    names: list[str] = []
    open_file = Path.open

    def recorded(path: Path, *arguments: object, **others: object) -> object:
        if path.parent.name in ("pictures", "other"):
            names.append(path.name)
        return open_file(path, *arguments, **others)  # type: ignore[call-overload]

    monkeypatch.setattr(Path, "open", recorded)
    yield names
    monkeypatch.undo()


def read(folder: Path, *names: str) -> dict[str, str]:
    with Contents("data.path") as reader:
        return reader.of(folder, names or ("a", "b"))


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def test_unchanged_files_are_read_once(folder: Path, opened: list[str]) -> None:
    first = read(folder)
    assert first == {"a": sha256("a"), "b": sha256("b")}
    assert sorted(opened) == ["a", "b"]
    assert read(folder) == first
    assert sorted(opened) == ["a", "b"]


def test_changed_file_is_read_again(folder: Path, opened: list[str]) -> None:
    read(folder)
    (folder / "a").write_text("c")
    os.utime(folder / "a", ns=(10**18 + 1, 10**18 + 1))
    opened.clear()
    assert read(folder) == {"a": sha256("c"), "b": sha256("b")}
    assert opened == ["a"]


def test_replaced_file_of_the_same_size_and_time_is_read_again(folder: Path) -> None:
    """As after `cp --preserve` or `rsync --times`: only the inode tells."""
    read(folder)
    (folder / "new").write_text("c")
    os.utime(folder / "new", ns=(10**18, 10**18))
    (folder / "new").replace(folder / "a")
    assert read(folder)["a"] == sha256("c")


def test_file_that_was_just_written_is_not_remembered(folder: Path) -> None:
    """It may change again within the resolution of its modification time, which is then the same."""
    status = (folder / "a").stat()
    (folder / "a").write_text("c")
    just_now = (folder / "a").stat().st_mtime_ns
    assert read(folder)["a"] == sha256("c")
    (folder / "a").write_text("d")
    os.utime(folder / "a", ns=(just_now, just_now))
    assert (folder / "a").stat().st_ino == status.st_ino
    assert read(folder)["a"] == sha256("d")


@pytest.mark.parametrize("damage", [b"no database" * 1000, b"", None])
def test_damaged_memory_is_made_again(folder: Path, damage: bytes | None, opened: list[str]) -> None:
    first = read(folder)
    content = DATABASE.read_bytes()
    DATABASE.write_bytes(content[: len(content) // 2] if damage is None else damage)
    assert read(folder) == first
    assert read(folder) == first
    opened.clear()
    assert read(folder) == first
    assert opened == []


def test_interpreter_without_dvc_reads_all_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = read(folder)
    monkeypatch.setitem(sys.modules, "halfstep.inputs.digest_store", None)
    assert read(folder) == first


def test_two_processes_at_once(folder: Path, root: Path) -> None:
    for number in range(300):
        (folder / f"{number}.png").write_text(f"{number}")
        os.utime(folder / f"{number}.png", ns=(10**18, 10**18))
    code = (
        "import pathlib\nfrom halfstep.inputs.contents import Contents\n"
        "with Contents('data.path') as found:\n"
        "    print(sorted(found.of(pathlib.Path('pictures'), [f'{n}.png' for n in range(300)]).items()))"
    )
    command, variables = [sys.executable, "-c", code], os.environ | {"PYTHONPATH": str(root)}
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, env=variables, text=True) for _ in range(3)]
    outputs = [process.communicate(timeout=60)[0] for process in started]
    assert [process.returncode for process in started] == [0, 0, 0]
    assert set(outputs) == {f"{sorted((f'{n}.png', sha256(str(n))) for n in range(300))}\n"}


def test_long_reading_says_what_it_does(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(contents, "FIRST_NOTE_S", 0.02)
    monkeypatch.setattr(contents, "NEXT_NOTE_S", 0.02)
    with (folder / "large").open("wb") as stream:
        stream.truncate(2**28)
    read(folder, "a", "large")
    first, *_ = capfd.readouterr().err.splitlines()
    assert re.fullmatch(
        r"data\.path: files are identified by their contents: \d+ read so far \(0\.\d GiB\); the next time, only what "
        r"has changed is read",
        first,
    )


def test_interrupted_reading_remembers_what_it_read(
    folder: Path, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    read_file = Contents._read

    def interrupted(reader: Contents, path: Path) -> str:
        if path.name == "b":
            raise KeyboardInterrupt
        return read_file(reader, path)

    monkeypatch.setattr(Contents, "_read", interrupted)
    with pytest.raises(KeyboardInterrupt):
        read(folder)
    monkeypatch.setattr(Contents, "_read", read_file)
    opened.clear()
    assert read(folder)["a"] == sha256("a")
    assert opened == ["b"]


@pytest.mark.parametrize("entry", ["{", "[]", "{}", '{"checksum": 1, "hash_info": 1}'])
def test_damaged_entry_is_not_used(folder: Path, entry: str) -> None:
    first = read(folder)
    with sqlite3.connect(DATABASE) as other:
        other.execute("UPDATE Cache SET value = ?", (entry,))
    assert read(folder) == read(folder) == first


def test_locked_memory_is_done_without(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def locked(*_: object) -> object:
        raise Timeout("database is locked")

    first = read(folder)
    with monkeypatch.context() as patches:
        patches.setattr(State, "get_many", locked)
        patches.setattr(State, "save_many", locked)
        assert read(folder) == first
    assert DATABASE.is_file()
