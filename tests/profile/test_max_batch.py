from __future__ import annotations

import time
from pathlib import Path

import psutil
import pytest

from halfstep.errors import ProfileError
from halfstep.machine import cgroups
from halfstep.params.schema import ModelParams, ProfileParams, TaskParams, TrainParams, Variant
from halfstep.profile import max_batch
from halfstep.profile.max_batch import LARGEST, largest_batch, try_batch
from halfstep.results.prepared import PreparedInfo
from halfstep.results.profile import BatchTried, LargestBatch
from halfstep.system import files
from halfstep.tasks.trial import Trial
from halfstep.words.text import MIB
from tests.profile.fake_worker import children

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

def crashing(shape, classes):
    os._exit(3)
"""
ROOT = Path(__file__).parents[2]
FLOAT32 = Variant(policy="float32")
LIMIT_MIB = 192


def config(model: str, batch_size: int, variant: Variant = FLOAT32) -> Trial:
    named = ModelParams(name=f"halfstep_test_models:{model}")
    return Trial(TaskParams(), named, TrainParams(batch_size=batch_size), variant, seed=0)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with the models above and the description of prepared images, without the images."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # for the fork server, if this file is the first to start it
    (tmp_path / "halfstep_test_models.py").write_text(MODELS)
    PreparedInfo(
        source="synthetic",
        synthetic=True,
        classes=("a", "b"),
        image_shape=(96, 96, 3),
        images={},
        class_counts={},
        rejected=0,
    ).write(files.PREPARED / "info.json")
    return tmp_path


def tried_batch(batch_size: int, examples_per_s: float = 1.0) -> BatchTried:
    """A batch of which each example takes 1 MiB."""
    return BatchTried(batch_size=batch_size, peak_mib=batch_size, examples_per_s=examples_per_s)


def too_large(batch_size: int) -> BatchTried:
    return BatchTried(batch_size=batch_size)


def fitting(largest: LargestBatch) -> list[tuple[int, bool]]:
    return [(one.batch_size, one.fits) for one in largest.tried]


@pytest.mark.parametrize(
    ("start", "capacity", "largest", "tried"),
    [
        (8, 100, 64, [8, 16, 32, 64, 128]),
        (32, 9, 8, [32, 16, 8]),
        (3, 0, 0, [2, 1]),
        (100, 300, 256, [64, 100, 128, 256, 512]),
        (100, 70, 64, [64, 100, 128]),
        (LARGEST // 2, 10**9, LARGEST, [LARGEST // 2, LARGEST]),
    ],
)
def test_powers_of_two_are_tried_while_they_fit_or_until_one_does(
    monkeypatch: pytest.MonkeyPatch, start: int, capacity: int, largest: int, tried: list[int]
) -> None:
    def attempt(config: Trial, batch_size: int, limit_mib: int | None) -> BatchTried:
        return tried_batch(batch_size, 10.0 * batch_size) if batch_size <= capacity else too_large(batch_size)

    monkeypatch.setattr(max_batch, "try_batch", attempt)
    batch = largest_batch(config("tiny", start), ProfileParams(), "GPU")
    assert [one.batch_size for one in batch.tried] == tried
    assert batch.batch_size == largest
    assert batch.examples_per_s == (10.0 * largest if largest else None)


def test_search_ends_where_a_size_trains_at_half_of_the_best_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    speeds = {8: 100.0, 16: 180.0, 32: 120.0, 64: 80.0, 128: 500.0}
    monkeypatch.setattr(max_batch, "try_batch", lambda config, size, limit: tried_batch(size, speeds[size]))
    largest = largest_batch(config("tiny", 8), ProfileParams(), "GPU")
    assert [one.batch_size for one in largest.tried] == [8, 16, 32, 64]
    assert (largest.batch_size, largest.examples_per_s) == (64, 80.0)


@pytest.mark.slow
def test_larger_limit_gives_larger_batch() -> None:
    small, large = (
        largest_batch(config("tiny", 256), ProfileParams(memory_limit_mib=limit_mib), "CPU")
        for limit_mib in (LIMIT_MIB, 4 * LIMIT_MIB)
    )
    assert 64 <= small.batch_size < large.batch_size
    for batch, limit_mib in ((small, LIMIT_MIB), (large, 4 * LIMIT_MIB)):
        assert batch.limit_mib == limit_mib
        assert batch.peak_mib is not None
        # The scaled images of two steps, the largest buffers here, may or may not be in memory at once.
        assert 0.12 * limit_mib < batch.peak_mib <= limit_mib
        assert batch.examples_per_s is not None
        # it ends at one that does not fit, or, where another program is busy just then, at one that seems slow
        assert fitting(batch)[-1] in ((2 * batch.batch_size, False), (batch.batch_size, True))
    assert children() == []


def test_child_that_exceeds_the_limit_is_killed() -> None:
    """32,768 images are 0.9 GB as uint8 and 3.6 GB as float32."""
    started_s = time.monotonic()
    assert try_batch(config("tiny", 8), 32_768, LIMIT_MIB) == too_large(32_768)
    assert time.monotonic() - started_s < 30
    assert children() == []


def test_child_that_would_fill_the_memory_of_the_machine_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(max_batch, "MIN_FREE", 1.0)
    assert try_batch(config("tiny", 8), 8, 10**6) == too_large(8)


def test_batch_whose_child_dies_does_not_fit() -> None:
    largest = largest_batch(config("crashing", 2), ProfileParams(memory_limit_mib=LIMIT_MIB), "CPU")
    assert fitting(largest) == [(2, False), (1, False)]
    assert (largest.batch_size, largest.peak_mib) == (0, None)


def test_error_of_the_first_size_is_raised_in_one_line() -> None:
    bad = config("always_float32", 8, Variant(policy="mixed_bfloat16"))
    with pytest.raises(ProfileError, match=r"^profile\.find_max_batch: the variant .* is not in force") as caught:
        largest_batch(bad, ProfileParams(memory_limit_mib=LIMIT_MIB), "CPU")
    assert "\n" not in str(caught.value)


def test_size_with_an_error_after_a_size_that_trains_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    def attempt(config: Trial, batch_size: int, limit_mib: int | None) -> BatchTried | str:
        return tried_batch(batch_size) if batch_size <= 16 else "an index is too large"

    monkeypatch.setattr(max_batch, "try_batch", attempt)
    largest = largest_batch(config("tiny", 8), ProfileParams(memory_limit_mib=1024), "CPU")
    assert (largest.batch_size, largest.peak_mib) == (16, 16)
    assert fitting(largest) == [(8, True), (16, True), (32, False)]
    with pytest.raises(ProfileError, match="an index is too large"):
        largest_batch(config("tiny", 64), ProfileParams(memory_limit_mib=1024), "CPU")


def test_peak_above_the_limit_does_not_fit_even_if_the_child_was_not_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(max_batch, "try_batch", lambda config, size, limit: tried_batch(size))
    largest = largest_batch(config("tiny", 64), ProfileParams(memory_limit_mib=100), "CPU")
    assert (largest.batch_size, largest.peak_mib) == (64, 64)
    assert fitting(largest) == [(64, True), (128, False)]


def test_gpu_has_no_memory_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        max_batch, "try_batch", lambda config, size, limit: tried_batch(size) if size <= 128 else too_large(size)
    )
    largest = largest_batch(config("tiny", 64), ProfileParams(memory_limit_mib=64), "GPU")
    assert (largest.batch_size, largest.limit_mib, largest.peak_mib) == (128, None, 128)


def test_default_limit_is_half_of_the_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(max_batch, "try_batch", lambda config, size, limit: too_large(size))
    largest = largest_batch(config("tiny", 1), ProfileParams(), "CPU")
    assert largest.limit_mib is not None
    assert 1 <= largest.limit_mib <= psutil.virtual_memory().total // 2 // MIB


def test_default_limit_respects_the_control_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(max_batch, "try_batch", lambda config, size, limit: too_large(size))
    monkeypatch.setattr(cgroups, "free_memory_bytes", lambda: 100 * MIB)
    max_batch._half_of_free_mib.cache_clear()
    assert largest_batch(config("tiny", 1), ProfileParams(), "CPU").limit_mib == 50
    max_batch._half_of_free_mib.cache_clear()


@pytest.mark.slow
def test_child_runs_with_the_onednn_setting_of_its_variant() -> None:
    """TensorFlow reads the setting at import. The child checks it when it compiles the model."""
    attempt = try_batch(config("tiny", 8, Variant(policy="float32", onednn=False)), 8, 1024)
    assert isinstance(attempt, BatchTried)
    assert attempt.fits
