from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from halfstep.inputs.own_code import code_digest
from halfstep.params.schema import Augment, ModelParams, Params, TrainParams, Variant
from halfstep.train import checkpoints
from halfstep.train.checkpoint_files import Checkpoint, Checkpoints
from halfstep.train.checkpoints import checkpoint_key, opened
from halfstep.train.epochs import Epoch

LOGS = {"loss": 1.5, "accuracy": 0.5, "val_loss": float("nan"), "val_accuracy": 0.25}
ROW = Epoch(0, LOGS, 0.1, 2.0, 1024.0, 3)


def saved(kept: Checkpoints, *steps: int) -> list[Path]:
    """The checkpoint files after some checkpoints were saved."""
    for step in steps:
        kept.save(checkpoint(step))
    kept.flush()
    return kept._paths()


def checkpoint(step: int) -> Checkpoint:
    epochs = (ROW,) * (step // 10)
    return Checkpoint(step, epochs, 1.25, 0.5, 2, {"model/0": np.full((2, 3), step / 7, np.float32)})


@pytest.fixture
def kept(tmp_path: Path) -> Checkpoints:
    return Checkpoints(tmp_path / "a-0" / "kept")


def test_read_checkpoint_equals_the_saved_one(kept: Checkpoints) -> None:
    saved(kept, 15)
    newest = kept.newest()
    assert newest is not None
    assert repr(newest) == repr(checkpoint(15))
    assert newest.arrays["model/0"].dtype == np.float32


def test_newest_two_are_kept(kept: Checkpoints, tmp_path: Path) -> None:
    assert [path.name.split("-")[0] for path in saved(kept, 9, 10, 11, 100)] == ["000000000011", "000000000100"]
    kept.remove()
    assert not (tmp_path / "a-0").exists()


@pytest.mark.parametrize("sixteenth", range(16))
def test_truncated_checkpoint_is_skipped_with_a_message(
    kept: Checkpoints, sixteenth: int, capsys: pytest.CaptureFixture[str]
) -> None:
    path = saved(kept, 1, 2)[-1]
    content = path.read_bytes()
    path.write_bytes(content[: len(content) * sixteenth // 16])
    newest = kept.newest()
    assert newest is not None
    assert newest.step == 1
    assert capsys.readouterr().err == f"{path} is damaged (its sha256 differs) and is not used\n"
    assert len(kept._paths()) == 1


def test_full_disk_gives_one_warning(
    kept: Checkpoints, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    saved(kept, 1)
    monkeypatch.setattr(Path, "write_bytes", full)
    saved(kept, 2, 3)
    message = capsys.readouterr().err
    assert len(message.splitlines()) == 1
    assert "No space left on device" in message
    assert "the training continues" in message
    assert len(kept._paths()) == 1


def test_checkpoints_with_another_key_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / ".halfstep/checkpoints/a-0"
    for key in ("1" * 64, "2" * 64):
        with opened("a-0", key) as kept:
            assert kept is not None
            assert kept.newest() is None
            kept.save(checkpoint(1))
    assert [path.name for path in folder.iterdir()] == ["2" * 16]
    (folder / ("2" * 16) / ".partial.npz").touch()
    with opened("a-0", "2" * 64) as kept:
        assert kept is not None
        assert kept.newest() is not None
        assert not list(folder.rglob(".partial*"))


def test_checkpoints_of_a_running_process_are_not_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with opened("a-0", "1" * 64) as first:
        assert first is not None
        saved(first, 1)
        with opened("a-0", "1" * 64) as second:
            assert second is None
            assert "another process runs the same training" in capsys.readouterr().err
        with opened("a-0", "2" * 64) as other:
            assert other is not None
        assert first.newest() is not None


def test_checkpoints_are_in_the_original_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def key(params: Params) -> str:
    return checkpoint_key(params, "float32", 0, "d")


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_key_depends_on_the_parameters(change: dict[str, Any]) -> None:
    assert checkpoint_key(PARAMS.model_copy(update=change), "float32", 0, "d") != checkpoint_key(
        PARAMS, "float32", 0, "d"
    )


def test_key_ignores_parameters_without_effect_on_the_result() -> None:
    train = TrainParams(checkpoint_every=5, seeds=(0, 1), variants=("float32",))
    assert checkpoint_key(PARAMS.model_copy(update={"train": train}), "float32", 0, "d") == checkpoint_key(
        PARAMS, "float32", 0, "d"
    )


def test_key_depends_on_data_seed_and_variant() -> None:
    keys = {checkpoint_key(PARAMS, *rest) for rest in [("float32", 0, "d"), ("float32", 1, "d"), ("float32", 0, "e")]}
    assert len(keys | {checkpoint_key(PARAMS, "mixed_float16", 0, "d")}) == 4


def test_key_depends_on_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    before = key(PARAMS)
    assert key(PARAMS) == before
    digests = {"train": code_digest("train")}
    monkeypatch.setattr(checkpoints, "code_digest", digests.__getitem__)
    assert key(PARAMS) == before
    digests["train"] = code_digest("profile")
    assert key(PARAMS) != before


def test_key_depends_on_the_helpers_of_the_users_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "user_model.py").write_text("def build(shape, classes):\n    from helper import layer")
    params = PARAMS.model_copy(update={"model": ModelParams(name="user_model:build")})
    keys = set()
    for text in ("layer = 1", "layer = 2"):
        (tmp_path / "helper.py").write_text(text)
        keys.add(checkpoint_key(params, "float32", 0, "d"))
    assert len(keys) == 2


def test_shared_folder_keeps_the_checkpoints_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HALFSTEP_CHECKPOINTS", str(tmp_path / "shared"))
    for key in ("1" * 64, "2" * 64):
        with opened("a-0", key) as kept:
            assert kept is not None
            saved(kept, 15)
    assert len(list((tmp_path / "shared" / "a-0").glob("*/[0-9]*.npz"))) == 2
    assert not (tmp_path / ".halfstep").exists()


def test_a_lost_machine_is_waited_for_in_a_shared_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HALFSTEP_CHECKPOINTS", "shared")  # relative to the checkout
    code = (
        "import sys, time; sys.path.insert(0, sys.argv[1])\n"
        "from halfstep.system.locking import try_lock\n"
        "lock = try_lock(__import__('pathlib').Path('shared/a-0', '1' * 16, '.lock'))\n"
        "print('locked', flush=True); time.sleep(2)"
    )
    command = [sys.executable, "-c", code, str(Path(__file__).parents[2])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "locked\n"
        with opened("a-0", "1" * 64) as kept:
            assert kept is not None
            assert other.wait(timeout=1) == 0
