from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from halfstep.errors import CorruptFileError, DataError
from halfstep.system import files


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_atomic_write_replaces_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "new" / "table.csv"
    for text in ("old", "new"):
        with files.atomic_path(path) as temporary_path:
            assert temporary_path.suffix == path.suffix
            temporary_path.write_text(text)
            assert not path.exists() or path.read_text() == "old"
    assert path.read_text() == "new"
    assert names(path.parent) == {"table.csv"}


def test_open_file_is_not_changed_by_a_write(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("old")
    with path.open() as reader:
        files.write_text(path, "new")
        assert reader.read() == "old"


def test_full_disk_gives_one_line_and_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("old")

    def write() -> None:
        with files.atomic_path(path) as temporary_path, Path("/dev/full").open("w") as full:
            temporary_path.write_text("x")
            full.write("x" * 10_000)

    with pytest.raises(DataError, match=r"table\.csv: cannot be written \(No space left on device\)"):
        write()
    assert path.read_text() == "old"
    assert names(tmp_path) == {"table.csv"}


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_are_rejected(tmp_path: Path, value: float) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        files.write_json(tmp_path / "a.json", {"a": value})
    assert names(tmp_path) == set()


def test_update_writes_only_what_differs(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    for value in ({"a": 1}, {"a": 2}):
        files.update_json(path, value)
        assert files.read_json(path) == value
    inode = path.stat().st_ino  # a written file replaces the old one
    files.update_json(path, {"a": 2})
    assert path.stat().st_ino == inode
    path.write_text('{"a": 2}')
    files.update_json(path, {"a": 2})
    assert path.read_text() == '{\n  "a": 2\n}\n'


def test_json_that_is_nested_too_deep_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("[" * 100_000 + "]" * 100_000)
    with pytest.raises(CorruptFileError, match=r"a\.json is nested too deep: remove it and run"):
        files.read_json(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "below").mkdir()
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "below" / "b.txt").write_text("b")
    return tmp_path


def test_equal_content_gives_equal_manifests(folder: Path) -> None:
    digest = files.write_manifest(folder)
    assert files.verify_manifest(folder) == digest == files.write_manifest(folder)
    assert set(files.read_json(folder / "manifest.json")) == {"a.txt", "below/b.txt", "manifest.json"}
    (folder / "a.txt").write_text("c")
    assert files.write_manifest(folder) != digest


def test_missing_file_and_missing_manifest_are_rejected(folder: Path) -> None:
    with pytest.raises(DataError, match=r"manifest\.json is missing"):
        files.verify_manifest(folder)
    files.write_manifest(folder)
    (folder / "a.txt").unlink()
    with pytest.raises(CorruptFileError, match=r"a\.txt is missing"):
        files.verify_manifest(folder)


def test_user_directory_is_found_from_a_temporary_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original, copy = tmp_path / "original", tmp_path / "copy"
    for path in (original / "pictures", copy):
        path.mkdir(parents=True)
    monkeypatch.chdir(copy)
    monkeypatch.setenv("DVC_ROOT", str(original))
    assert files.resolve_data_path("pictures") == original / "pictures"
    (copy / "pictures").mkdir()
    assert files.resolve_data_path("pictures").resolve() == copy / "pictures"
    assert files.resolve_data_path("/no/such") == Path("/no/such")
    assert files.original_root() == original


@pytest.mark.parametrize("in_a_copy", [False, True])
def test_root_in_a_monorepo_is_the_folder_of_params(tmp_path: Path, root: Path, in_a_copy: bool) -> None:
    """`DVC_ROOT` is the folder of `.dvc`; a script changes the working folder later."""
    original, copy = tmp_path / "top", tmp_path / "top/.dvc/tmp/exps/standalone/tmp1"
    for path in (original, copy):
        (path / ".dvc").mkdir(parents=True, exist_ok=True)
        (path / "ml/halfstep").mkdir(parents=True)
    code = "import os; from halfstep.system import files; os.chdir('/'); print(files.original_root())"
    variables = {"PATH": os.environ["PATH"], "PYTHONPATH": str(root), "DVC_ROOT": str(original)}
    folder = (copy if in_a_copy else original) / "ml/halfstep"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(original / "ml/halfstep")


def test_home_directory_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert files.resolve_data_path("~/pictures") == tmp_path / "pictures"
