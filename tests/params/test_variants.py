"""What an entry of `variants` changes in the training, and which measures that concerns."""

from __future__ import annotations

from typing import Any

import pytest

from halfstep.machine import fingerprint
from halfstep.params.measures import measures_of
from halfstep.params.schema import TrainParams, Variant

BASELINE = Variant(policy="float32")
TRAIN = TrainParams(batch_size=32, learning_rate=0.005, input_threads=2)


@pytest.mark.parametrize(
    ("entry", "batch_size", "learning_rate", "input_threads"),
    [
        ({}, 32, 0.005, 2),
        ({"batch_size": 128}, 128, 0.02, 2),
        ({"batch_size": 8}, 8, 0.00125, 2),
        ({"batch_size": 128, "learning_rate": 0.01}, 128, 0.01, 2),
        ({"learning_rate": 0.01, "input_threads": 4}, 32, 0.01, 4),
    ],
)
def test_learning_rate_is_in_proportion_to_the_batch_unless_given(
    entry: dict[str, Any], batch_size: int, learning_rate: float, input_threads: int
) -> None:
    train = Variant(policy="float32", **entry).applied_to(TRAIN)
    assert (train.batch_size, train.input_threads) == (batch_size, input_threads)
    assert train.learning_rate == pytest.approx(learning_rate)
    assert train.warmup_epochs == TRAIN.warmup_epochs


@pytest.mark.parametrize(
    ("entry", "is_inferred"),
    [
        ({}, True),  # another copy of the baseline
        ({"batch_size": 64}, False),
        ({"learning_rate": 0.1, "input_threads": 4, "cache_input": True}, False),
        ({"batch_size": 64, "parent": "float32"}, False),
        ({"threads": 1}, True),
        ({"batch_size": 64, "policy": "mixed_bfloat16"}, True),
        ({"batch_size": 64, "onednn": False}, True),
    ],
)
def test_inference_is_measured_where_an_entry_can_change_it(entry: dict[str, Any], is_inferred: bool) -> None:
    measures = measures_of(Variant(**({"policy": "float32"} | entry)), BASELINE, (1, 32))
    assert measures == (["train", "inference_b1", "inference_b32"] if is_inferred else ["train"])


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (("avx2",), {"float32": True, "mixed_float16": True, "float16": True, "mixed_bfloat16": True}),
        (("avx512_fp16",), {"float32": True, "mixed_float16": False, "float16": False, "mixed_bfloat16": True}),
        (("avx512_fp16", "amx_tile"), {"float32": True, "mixed_float16": True, "float16": True}),
    ],
)
def test_onednn_is_left_out_where_its_float16_is_slow(
    flags: tuple[str, ...], expected: dict[Any, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fingerprint, "cpu_flags", lambda: list(flags))
    fingerprint.is_onednn_slow_in_float16.cache_clear()
    found = {policy: Variant(policy=policy).uses_onednn for policy in expected}
    given = [Variant(policy="mixed_float16", onednn=onednn) for onednn in (True, False)]
    fingerprint.is_onednn_slow_in_float16.cache_clear()
    assert found == expected
    assert [entry.uses_onednn for entry in given] == [True, False]
    assert [entry.variables for entry in given] == [{}, {"TF_ENABLE_ONEDNN_OPTS": "0"}]
