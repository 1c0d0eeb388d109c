from __future__ import annotations

import multiprocessing
import time
from pathlib import Path

import psutil
import pytest

from stages import files
from stages.errors import ProfileError
from stages.params import ModelParams, ProfileParams, TrainParams, Variant
from stages.profile import memory
from stages.profile.memory import LARGEST, MIB, Attempt, largest_batch, search, try_batch
from stages.profile.records import Task

MODELS = """
import os
import keras

def tiny(shape, classes):
    pixels = keras.Input(shape, dtype="uint8")
    scaled = keras.layers.Flatten()(keras.layers.Rescaling(1 / 255)(pixels))
    hidden = keras.layers.Dense(2)(scaled)
    return keras.Model(pixels, keras.layers.Dense(classes, activation="softmax", dtype="float32")(hidden))

def always_float32(shape, classes):
    pixels = keras.Input(shape, dtype="uint8")
    scaled = keras.layers.Flatten()(keras.layers.Rescaling(1 / 255, dtype="float32")(pixels))
    return keras.Model(pixels, keras.layers.Dense(classes, activation="softmax", dtype="float32")(scaled))

def deadly(shape, classes):
    os._exit(3)
"""
ROOT = Path(__file__).parents[2]
FLOAT32 = Variant(policy="float32")
LIMIT_MIB = 192


def task(model: str, batch_size: int, variant: Variant = FLOAT32) -> Task:
    return Task(ModelParams(name=f"halfstep_test_models:{model}"), TrainParams(batch_size=batch_size), variant, seed=0)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with models of its own, and of the prepared images only what describes them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(
        "PYTHONPATH", str(ROOT)
    )  # for the server of the children, where this file is the first to start it
    (tmp_path / "halfstep_test_models.py").write_text(MODELS)
    files.write_json(files.PREPARED / "info.json", {"image_shape": [96, 96, 3], "classes": ["a", "b"]})
    return tmp_path


@pytest.mark.parametrize("start", [1, 3, 8, 12, 32, 100, LARGEST])
@pytest.mark.parametrize("capacity", [0, 1, 2, 5, 7, 8, 9, 15, 16, 31, 32, 100, 1000, 12_345, LARGEST, 10**9])
def test_the_search_ends_close_below_what_fits(start: int, capacity: int) -> None:
    asked: list[int] = []

    def fits(size: int) -> bool:
        asked.append(size)
        return size <= capacity

    found = search(start, fits)
    assert found == 0 or found in asked
    assert found <= min(capacity, LARGEST)
    refused = [size for size in asked if size > capacity]
    assert len(set(asked)) == len(asked) < 40
    assert all(size <= 8 or size % 8 == 0 or size == start for size in asked)
    if capacity < LARGEST:  # the next that was refused is within 12.5 %, or the next on the grid
        assert min(refused) <= max(found * 1.125, found + 1 if found < 8 else found // 8 * 8 + 8)
    else:
        assert found == LARGEST


def test_the_result_obeys_the_limit_and_grows_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "TOLERANCE", 0.5)  # fewer children
    small, large = (
        largest_batch(task("tiny", start), ProfileParams(memory_limit_mib=limit_mib), "CPU")
        for start, limit_mib in ((768, LIMIT_MIB), (1792, 2 * LIMIT_MIB))
    )
    assert 64 <= small.batch_size < large.batch_size
    for found, limit_mib in ((small, LIMIT_MIB), (large, 2 * LIMIT_MIB)):
        assert found.limit_mib == limit_mib
        assert found.peak_mib is not None
        assert 0.5 * limit_mib < found.peak_mib <= limit_mib
        assert max(size for size, fits in found.tried if fits) == found.batch_size
        assert found.batch_size < min(size for size, fits in found.tried if not fits) <= found.batch_size * 1.5
    assert multiprocessing.active_children() == []


def test_a_child_is_ended_once_it_exceeds_the_limit() -> None:
    """32,768 images are 0.9 GB as they come and 3.6 GB as float32; the child never gets to say that it was done."""
    started_s = time.monotonic()
    assert try_batch(task("tiny", 8), 32_768, LIMIT_MIB) == Attempt()
    assert time.monotonic() - started_s < 30
    assert multiprocessing.active_children() == []


def test_a_child_that_would_fill_the_machine_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "LEAST_FREE", 1.0)
    assert try_batch(task("tiny", 8), 8, 10**6) == Attempt()


def test_a_child_that_dies_is_a_batch_that_does_not_fit() -> None:
    found = largest_batch(task("deadly", 2), ProfileParams(memory_limit_mib=LIMIT_MIB), "CPU")
    assert found.tried == ((2, False), (1, False))
    assert (found.batch_size, found.peak_mib) == (0, None)


def test_a_variant_that_is_not_in_force_is_one_line() -> None:
    bad = task("always_float32", 8, Variant(policy="mixed_bfloat16"))
    with pytest.raises(ProfileError, match=r"^profile\.find_max_batch: the variant .* is not in force") as caught:
        largest_batch(bad, ProfileParams(memory_limit_mib=LIMIT_MIB), "CPU")
    assert "\n" not in str(caught.value)


def test_a_refusal_of_a_larger_batch_is_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def answers(task: Task, batch_size: int, limit_mib: int | None) -> Attempt:
        return Attempt(peak_bytes=batch_size * MIB) if batch_size <= 16 else Attempt(refusal="an index is too large")

    monkeypatch.setattr(memory, "try_batch", answers)
    found = largest_batch(task("tiny", 8), ProfileParams(memory_limit_mib=1024), "CPU")
    assert (found.batch_size, found.peak_mib) == (16, 16)
    assert found.tried == ((8, True), (16, True), (32, False), (24, False))
    with pytest.raises(ProfileError, match="an index is too large"):
        largest_batch(task("tiny", 64), ProfileParams(memory_limit_mib=1024), "CPU")


def test_a_peak_above_the_limit_counts_where_it_was_too_short_to_be_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "try_batch", lambda task, size, limit: Attempt(peak_bytes=size * MIB))
    found = largest_batch(task("tiny", 64), ProfileParams(memory_limit_mib=100), "CPU")
    assert (found.batch_size, found.peak_mib) == (96, 96)
    assert found.tried == ((64, True), (128, False), (96, True), (112, False), (104, False))


def test_a_gpu_has_no_limit_but_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "try_batch", lambda task, size, limit: Attempt(5 * MIB) if size <= 64 else Attempt())
    found = largest_batch(task("tiny", 64), ProfileParams(memory_limit_mib=64), "GPU")
    assert (found.batch_size, found.limit_mib, found.peak_mib) == (64, None, 5)


def test_half_of_what_is_free_is_the_limit_where_none_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "try_batch", lambda *_: Attempt())
    found = largest_batch(task("tiny", 1), ProfileParams(), "CPU")
    assert found.limit_mib is not None
    assert 1 <= found.limit_mib <= psutil.virtual_memory().total // 2 // MIB


def test_onednn_is_off_in_the_child_of_a_variant_that_asks_for_it() -> None:
    """TensorFlow reads the setting at its import; that it is off is proven when the child compiles its model."""
    attempt = try_batch(task("tiny", 8, Variant(policy="float32", onednn=False)), 8, 1024)
    assert attempt.refusal is None
    assert attempt.peak_bytes is not None
