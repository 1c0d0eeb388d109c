"""A damaged file is found, whatever the damage, and never used; and DVC's cache does not bring it back."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stages import files
from stages.errors import CorruptFileError
from tests.faults import corpus

FEWEST_DAMAGES = 36  # of a file: 16 cuts, 16 flipped bits and four others


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[corpus.Kept]]:
    root = tmp_path_factory.mktemp("corpus")
    corpus.write_results(root)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        yield corpus.kept_files()


def test_what_is_whole_is_read(results: list[corpus.Kept]) -> None:
    for kept in results:
        kept.read()


def test_every_damage_is_found(results: list[corpus.Kept]) -> None:
    outcomes = [outcome for kept in results for outcome in corpus.undetected(kept)]
    assert [name for name, was_used in outcomes if was_used] == []
    assert len(outcomes) == FEWEST_DAMAGES * len(results)
    kinds = {kept.path.name for kept in results}
    assert kinds >= {
        *(f"{split}_{kind}.npy" for split in ("train", "validation", "test") for kind in ("images", "labels")),
        *("info.json", "manifest.json", "environment.json", "metrics.json", "history.csv", "predictions.npy"),
        *("model.keras", "rounds.csv", "timings.csv", "inference.csv", "summary.json", "host.xplane.pb"),
    }


def test_a_file_that_nobody_wrote_down_is_not_used(results: list[corpus.Kept]) -> None:
    directory = files.train_dir("float32", 1)
    (directory / "other.npy").write_bytes(b"x")
    with pytest.raises(CorruptFileError, match=r"other\.npy is not in the manifest beside it"):
        files.checked(directory, "other.npy")
    (directory / "other.npy").unlink()


PIPELINE = """
stages:
  prepare:
    cmd: >-
      python -c "from stages import files; files.write_text(files.PREPARED / 'a.csv', 'a' * 999);
      files.write_manifest(files.PREPARED)"
    outs: [data/prepared]
"""


def dvc(*arguments: str) -> str:
    done = subprocess.run(["dvc", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("damaged", ["a.csv", "the folder's listing"])
def test_a_damaged_object_of_dvcs_cache(
    damaged: str, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    digest = files.check_manifest(files.PREPARED)
    copies = [path for path in Path(".dvc/cache/files").rglob("*") if path.is_file()]
    (kept,) = [path for path in copies if (path.read_bytes() == b"a" * 999 if damaged == "a.csv" else path.suffix)]
    content = bytearray(kept.read_bytes())
    content[-20] ^= 1
    kept.chmod(0o644)
    kept.write_bytes(content)
    kept.chmod(0o444)  # as DVC leaves it, and as a disk that forgets a bit does
    shutil.rmtree(files.PREPARED)

    if damaged != "a.csv":  # that much DVC notices: it hands out nothing, and runs the stage again
        assert subprocess.run(["dvc", "checkout"], capture_output=True, check=False).returncode != 0
        assert not (files.PREPARED / "a.csv").exists()
        dvc("repro")
        assert files.check_manifest(files.PREPARED) == digest
        return
    dvc("checkout")
    assert "up to date" in dvc("status")  # DVC does not tell
    with pytest.raises(
        CorruptFileError, match=r"a\.csv is damaged .* remove \S+, DVC's damaged copy, and make"
    ) as told:
        files.check_manifest(files.PREPARED)
    assert str(tmp_path / kept) in str(told.value)
    assert "`dvc repro -f -s prepare`" in str(told.value)

    kept.unlink()  # the advice
    dvc("repro", "-f", "-s", "prepare")
    shutil.rmtree(files.PREPARED)
    dvc("checkout")
    assert files.check_manifest(files.PREPARED) == digest
