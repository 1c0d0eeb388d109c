"""A damaged file is always detected and never used, also if DVC's cache restored it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from halfstep.errors import CorruptFileError
from halfstep.system import files
from tests.faults import corpus

DAMAGES_PER_FILE = 36  # 16 truncations, 16 flipped bits and 4 others


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[corpus.Reader]]:
    root = tmp_path_factory.mktemp("corpus")
    corpus.write_results(root)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        yield corpus.readers()


def test_intact_files_are_read(results: list[corpus.Reader]) -> None:
    for reader in results:
        reader.read()


def test_every_damage_is_detected(results: list[corpus.Reader]) -> None:
    outcomes = [outcome for reader in results for outcome in corpus.damage_and_read(reader)]
    assert [name for name, was_used in outcomes if was_used] == []
    assert len(outcomes) == DAMAGES_PER_FILE * len(results)
    names = {reader.path.name for reader in results}
    assert names >= {
        *(f"{split}_{kind}.npy" for split in ("train", "validation", "test") for kind in ("images", "labels")),
        *("info.json", "manifest.json", "environment.json", "metrics.json", "history.csv", "predictions.npy"),
        *("model.keras", "rounds.csv", "timings.csv", "inference.csv", "summary.json", "host.xplane.pb"),
    }


def test_file_that_the_manifest_does_not_list_is_rejected(results: list[corpus.Reader]) -> None:
    directory = files.train_dir("float32", 1)
    (directory / "other.npy").write_bytes(b"x")
    with pytest.raises(CorruptFileError, match=r"other\.npy is not listed in manifest\.json"):
        files.verified(directory, "other.npy")
    (directory / "other.npy").unlink()


PIPELINE = """
stages:
  prepare:
    cmd: >-
      python -c "from halfstep.system import files; files.write_text(files.PREPARED / 'a.csv', 'a' * 999);
      files.write_manifest(files.PREPARED)"
    outs: [data/prepared]
"""


def dvc(*arguments: str) -> str:
    done = subprocess.run(["dvc", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_damaged_object_in_the_cache_of_dvc(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(root),
        "DVC_NO_ANALYTICS": "1",
        "DVC_SITE_CACHE_DIR": str(tmp_path / "site"),
    }.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "dvc.yaml").write_text(PIPELINE)
    dvc("init", "--no-scm")
    dvc("repro")
    digest = files.verify_manifest(files.PREPARED)
    copies = [path for path in Path(".dvc/cache/files").rglob("*") if path.is_file()]
    (cached,) = [path for path in copies if path.read_bytes() == b"a" * 999]
    content = bytearray(cached.read_bytes())
    content[-20] ^= 1
    cached.chmod(0o644)
    cached.write_bytes(content)
    cached.chmod(0o444)  # as DVC leaves it
    shutil.rmtree(files.PREPARED)

    dvc("checkout")
    assert "up to date" in dvc("status")  # DVC does not detect the damage
    with pytest.raises(
        CorruptFileError, match=r"a\.csv is damaged .* remove \S+, the damaged copy in DVC's cache, and recreate"
    ) as caught:
        files.verify_manifest(files.PREPARED)
    assert str(tmp_path / cached) in str(caught.value)
    assert "`dvc repro -f -s prepare`" in str(caught.value)

    cached.unlink()  # as the message says
    dvc("repro", "-f", "-s", "prepare")
    shutil.rmtree(files.PREPARED)
    dvc("checkout")
    assert files.verify_manifest(files.PREPARED) == digest
