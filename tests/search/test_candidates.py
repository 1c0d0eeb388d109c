"""Which sets of layers a search times, and which of the timed ones is the best."""

from __future__ import annotations

from dataclasses import asdict, replace

import pandas as pd
import pytest

from stages.profile.records import TracedPart
from stages.results.audit import LayerAudit, ModelAudit, Totals
from stages.results.comparison import Ratio
from stages.results.profile import AccountRow, Profile, read_profile
from stages.search.candidates import best_first, candidates_of
from tests.small_study import SmallStudy, complete_data, project

__all__ = ["complete_data", "project"]

# By path: class, dtype, operations of matrix products, and milliseconds in the baseline and in the variant.
LAYERS: dict[str, tuple[str, str, int, float, float]] = {
    "norm": ("LayerNormalization", "bfloat16", 0, 5.0, 9.0),
    "norm_1": ("LayerNormalization", "bfloat16", 0, 5.0, 5.0),
    "kept": ("Dense", "float32", 128, 5.0, 8.0),  # by the model's own code; it is slower beside its casts
    "slow": ("Dense", "bfloat16", 128, 5.0, 7.0),
    "fast": ("Dense", "bfloat16", 128, 20.0, 10.0),
}


def account(of: int) -> pd.DataFrame:
    rows = [
        AccountRow(process, **TracedPart("matmul", path, name, "MatMul", dtype, times_ms[of])._asdict())
        for process in range(4)
        for path, (name, dtype, _, *times_ms) in LAYERS.items()
    ]
    return pd.DataFrame([asdict(row) for row in rows])


@pytest.fixture
def profiles(project: SmallStudy) -> tuple[Profile, Profile]:
    layers = tuple(
        LayerAudit(path=path, type=name, compute_dtype=dtype, variable_dtype="float32", parameters=64, flops=flops)
        for path, (name, dtype, flops, *_) in LAYERS.items()
    )
    found = read_profile("float32")
    audit = ModelAudit(layers=layers, totals=Totals(parameters=320))
    return replace(found, account=account(0)), replace(found, account=account(1), audit=audit)


def test_sets_are_of_slower_layers_in_16_bits(profiles: tuple[Profile, Profile]) -> None:
    assert candidates_of(*profiles, ()) == {
        "as it is": (),
        "all LayerNormalization": ("norm", "norm_1"),
        "slower LayerNormalization": ("norm",),
        "slower Dense": ("slow",),
        "all that are slower": ("norm", "slow"),
    }


def test_needed_layers_are_in_each_set_and_a_matrix_product_stays_in_16_bits(profiles: tuple[Profile, Profile]) -> None:
    assert candidates_of(*profiles, ("fast",)) == {
        "as it is": ("fast",),
        "all LayerNormalization": ("fast", "norm", "norm_1"),
        "slower LayerNormalization": ("fast", "norm"),
    }


@pytest.mark.parametrize(
    ("ratios", "best"),
    [
        ({"one": (1.30, 1.20, 1.41), "two": (1.40, 1.30, 1.50)}, ["one", "two"]),
        ({"one": (1.30, 1.20, 1.39), "two": (1.40, 1.30, 1.50)}, ["two", "one"]),
        ({"one": (1.30, 1.29, 1.31), "two": (1.20, 1.19, 1.21), "three": (1.25, 1.24, 1.26)}, ["one", "three", "two"]),
        ({}, []),
    ],
)
def test_best_set_is_the_smallest_that_may_be_the_fastest(
    ratios: dict[str, tuple[float, float, float]], best: list[str]
) -> None:
    found = {name: Ratio(value=value, low=low, high=high) for name, (value, low, high) in ratios.items()}
    assert best_first(found, {"one": 1, "two": 2, "three": 3}) == best
