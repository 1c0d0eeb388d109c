from __future__ import annotations

import errno
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stages.params import Augment, ModelParams, Params, TrainParams, Variant
from stages.train import checkpoints
from stages.train.callbacks import Epoch
from stages.train.checkpoints import Checkpoint, Checkpoints, key_of, opened

ROW = Epoch(0, 1.5, 0.5, float("nan"), 0.25, 0.1, 2.0, 1024.0, 3)


def saved(kept: Checkpoints, *steps: int) -> list[Path]:
    """The files of the checkpoints that are left after some were saved."""
    for step in steps:
        kept.save(checkpoint(step))
    kept.flush()
    return kept._paths()


def checkpoint(step: int) -> Checkpoint:
    epochs = (ROW,) * (step // 10)
    return Checkpoint(step, epochs, 1.25, 0.5, 2, "abc", {"model/0": np.full((2, 3), step / 7, np.float32)})


@pytest.fixture
def kept(tmp_path: Path) -> Checkpoints:
    return Checkpoints(tmp_path / "a-0" / "kept")


def test_what_is_read_is_what_was_saved(kept: Checkpoints) -> None:
    saved(kept, 15)
    found = kept.newest()
    assert found is not None
    assert repr(found) == repr(checkpoint(15))
    assert found.arrays["model/0"].dtype == np.float32


def test_two_are_kept(kept: Checkpoints, tmp_path: Path) -> None:
    assert [path.name.split("-")[0] for path in saved(kept, 9, 10, 11, 100)] == ["000000000011", "000000000100"]
    kept.remove()
    assert not (tmp_path / "a-0").exists()


def test_without_any_there_is_none(kept: Checkpoints) -> None:
    assert kept.newest() is None


@pytest.mark.parametrize("sixteenth", range(16))
def test_one_that_is_cut_short_is_skipped_with_a_line(
    kept: Checkpoints, sixteenth: int, capsys: pytest.CaptureFixture[str]
) -> None:
    path = saved(kept, 1, 2)[-1]
    content = path.read_bytes()
    path.write_bytes(content[: len(content) * sixteenth // 16])
    found = kept.newest()
    assert found is not None
    assert found.step == 1
    assert capsys.readouterr().err == f"{path} is damaged (its sha256 differs): it is not used\n"
    assert len(kept._paths()) == 1


def test_one_with_a_flipped_bit_is_skipped(kept: Checkpoints, capsys: pytest.CaptureFixture[str]) -> None:
    (path,) = saved(kept, 1)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)
    assert kept.newest() is None
    assert "is damaged" in capsys.readouterr().err


def test_a_full_disk_costs_one_line(
    kept: Checkpoints, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    saved(kept, 1)
    monkeypatch.setattr(Path, "write_bytes", full)
    saved(kept, 2, 3)
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1
    assert "No space left on device" in said
    assert "the training goes on" in said
    assert len(kept._paths()) == 1


def test_those_that_something_else_made_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / ".halfstep/checkpoints/a-0"
    for key in ("1" * 64, "2" * 64):
        with opened("a-0", key) as kept:
            assert kept is not None
            assert kept.newest() is None
            kept.save(checkpoint(1))
    assert [path.name for path in folder.iterdir()] == ["2" * 16]
    (folder / ("2" * 16) / ".half-written.npz").touch()
    with opened("a-0", "2" * 64) as kept:
        assert kept is not None
        assert kept.newest() is not None
        assert not list(folder.rglob(".half*"))


def test_those_of_a_process_that_lives_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with opened("a-0", "1" * 64) as first:
        assert first is not None
        saved(first, 1)
        with opened("a-0", "1" * 64) as second:
            assert second is None
            assert "another process trains the same" in capsys.readouterr().err
        with opened("a-0", "2" * 64) as other:
            assert other is not None
        assert first.newest() is not None


def test_they_lie_in_the_original_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.chdir(tmp_path / "temporary")
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    with opened("a-0", "1" * 64):
        pass
    assert (tmp_path / ".halfstep/checkpoints/a-0").is_dir()


PARAMS = Params()
CHANGES: dict[str, dict[str, Any]] = {
    "learning rate": {"train": TrainParams(learning_rate=0.1)},
    "augmentation": {"train": TrainParams(augment=Augment(flip=True))},
    "epochs": {"train": TrainParams(epochs=9)},
    "model": {"model": ModelParams(name="resnet20")},
    "variant": {"variants": PARAMS.variants | {"float32": Variant(policy="float32", xla=True)}},
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_another_parameter_is_another_key(change: dict[str, Any]) -> None:
    assert key_of(PARAMS.model_copy(update=change), "float32", 0, "d") != key_of(PARAMS, "float32", 0, "d")


def test_what_changes_no_result_is_the_same_key() -> None:
    train = TrainParams(checkpoint_every=5, seeds=(0, 1), variants=("float32",))
    assert key_of(PARAMS.model_copy(update={"train": train}), "float32", 0, "d") == key_of(PARAMS, "float32", 0, "d")


def test_data_seed_and_variant_are_part_of_the_key() -> None:
    keys = {key_of(PARAMS, *rest) for rest in [("float32", 0, "d"), ("float32", 1, "d"), ("float32", 0, "e")]}
    assert len(keys | {key_of(PARAMS, "mixed_float16", 0, "d")}) == 4


def test_code_is_part_of_the_key(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(root / "stages", tmp_path / "stages", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(checkpoints.stages, "__file__", str(tmp_path / "stages/__init__.py"))  # type: ignore[attr-defined]
    before = key_of(PARAMS, "float32", 0, "d")
    for name in ("train/fitting.py", "models/cnn.py", "dataset.py", "precision.py", "recipe.py"):
        with (tmp_path / "stages" / name).open("a") as stream:
            stream.write("# changed\n")
        after = key_of(PARAMS, "float32", 0, "d")
        assert after != before, name
        before = after
    (tmp_path / "stages/compare/verdict.py").write_text("")
    assert key_of(PARAMS, "float32", 0, "d") == before


def test_ones_own_model_is_part_of_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    params = PARAMS.model_copy(update={"model": ModelParams(name="own_model_here:build")})
    keys = set()
    for text in ("a = 1", "a = 2"):
        (tmp_path / "own_model_here.py").write_text(text)
        keys.add(key_of(params, "float32", 0, "d"))
    assert len(keys) == 2
