"""Which layers the reasons advise to keep in float32."""

from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np
import pandas as pd
import pytest

from halfstep.compare.case import Case
from halfstep.compare.explain.account import account_of, with_names
from halfstep.compare.explain.accounts import Accounts
from halfstep.compare.explain.intervention import _interventions
from halfstep.compare.explain.why import account_text
from halfstep.compare.rules.layer_sets import casting_sets, slower_sets
from halfstep.results.audit import LayerAudit, ModelAudit
from halfstep.results.comparison import Account, LayerClassChange
from halfstep.results.confirmation import Confirmation, Intervention
from halfstep.results.profile import AccountRow, read_profile
from halfstep.stats.speedup import CONFIDENCE, ProcessTimes, Speedup
from tests.small_study import SmallStudy, case_of, environment, given

# By path: class, dtype, operations of matrix products, and milliseconds in the baseline and in the candidate.
LAYERS: dict[str, tuple[str, str, int, float, float]] = {
    "net": ("Functional", "bfloat16", 0, 5.0, 9.0),
    "norm": ("LayerNormalization", "bfloat16", 0, 5.0, 9.0),
    "norm_1": ("LayerNormalization", "bfloat16", 0, 5.0, 5.0),
    "kept": ("Dense", "float32", 128, 5.0, 8.0),  # by the model's own code; it is slower beside its casts
    "slow": ("Dense", "bfloat16", 128, 5.0, 7.0),
    "fast": ("Dense", "bfloat16", 128, 20.0, 10.0),
}


def account(of: int) -> pd.DataFrame:
    rows = [
        AccountRow(process, "matmul", path, name, "MatMul", dtype, times_ms[of])
        for process in range(4)
        for path, (name, dtype, _, *times_ms) in LAYERS.items()
    ]
    return pd.DataFrame([asdict(row) for row in rows])


@pytest.fixture
def case(project: SmallStudy) -> Case:
    """Of a candidate whose step takes 48 ms."""
    layers = tuple(
        LayerAudit(path=path, type=name, compute_dtype=dtype, multiplies=flops > 0)
        for path, (name, dtype, flops, *_) in LAYERS.items()
    )
    audit = ModelAudit(layers=layers)
    baseline = replace(read_profile("float32"), account=account(0))
    candidate = replace(read_profile("mixed_bfloat16"), account=account(1), audit=audit)
    speedups = {"train": Speedup((ProcessTimes(1, 45.0, 48.0, 0.0, 2),) * 2, CONFIDENCE)}
    accounts = Accounts.scaled([account(0), account(1)], [pd.Series([step_ms] * 4) for step_ms in (45.0, 48.0)])
    return case_of(baseline, candidate, None, environment(), speedups=speedups, accounts=accounts)


def test_slower_classes_come_first_and_a_matrix_product_stays_in_16_bits(case: Case) -> None:
    changes = {change.to: change for change in slower_sets(case)}
    assert list(changes) == [("norm", "norm_1"), ("norm",), ("slow",)]  # not both Dense layers: that is float32
    assert changes["norm", "norm_1"].layers == "all LayerNormalization"
    assert changes["slow",].layers is None
    assert changes["slow",].key == "variants.mixed_bfloat16.float32_layers"
    assert changes["norm",].at_most == pytest.approx(48 / (48 - 4))


def test_classes_with_casts_are_kept_in_float32(case: Case) -> None:
    casts = {"LayerNormalization": 3.0, "Dense": 2.0, "Conv2D": 1.0, "Activation": -1.0}
    classes = [
        LayerClassChange(
            layer_class=name, kind="cast", layers=2, value=delta, low=delta, high=delta, baseline_ms=0, candidate_ms=3
        )
        for name, delta in casts.items()
    ]
    (change,) = casting_sets(case, classes)
    assert (change.to, change.layers) == (("norm", "norm_1"), "all LayerNormalization")
    assert change.at_most == pytest.approx(48 / (48 - 3))


def test_without_an_audit_or_a_mixed_policy_there_is_none(case: Case) -> None:
    assert slower_sets(given(case, profile=replace(case.candidate, audit=None))) == []
    assert slower_sets(given(case, accounts=None)) == []


SPEEDUP = Speedup((ProcessTimes(1, 45.0, 48.0, 0.0, 2),) * 4, CONFIDENCE)


@pytest.fixture
def explained() -> Account:
    """Of normalization layers that lose 4 ms, which another kind shows than the matrix products."""
    tables = [
        table.assign(kind=table["layer"].str.startswith("norm").map({True: "normalization", False: "matrix_product"}))
        for table in (account(0), account(1))
    ]
    accounts = Accounts.scaled(tables, [pd.Series([step_ms] * 4) for step_ms in (45.0, 48.0)])
    one = account_of(accounts, SPEEDUP, None)
    assert one is not None
    return with_names({"x": one})["x"]


def test_layers_that_lose_most_are_chosen_while_most_stays_in_16_bits(case: Case, explained: Account) -> None:
    changes = {
        change.layers: change for change in _interventions(given(case, account=explained, speedups={"train": SPEEDUP}))
    }
    assert changes["norm", "norm_1"].what == "all LayerNormalization"
    assert changes["norm", "norm_1"].promised_ms == pytest.approx(4.0, rel=0.3)
    assert all(change.variant == "mixed_bfloat16" for change in changes.values())
    norms = account(0).assign(time_ms=lambda table: table["time_ms"] * np.where(table["layer"] == "norm", 20.0, 1.0))
    before = replace(case.before, account=norms)
    without_norms = _interventions(given(case, account=explained, before=before, speedups={"train": SPEEDUP}))
    assert [change.layers for change in without_norms] == [("slow",)]


def test_nothing_is_tried_for_an_account_that_says_nothing(case: Case, explained: Account) -> None:
    void = explained.model_copy(update={"void": True})
    assert list(_interventions(given(case, account=void, speedups={"train": SPEEDUP}))) == []
    assert list(_interventions(given(case, account=None, speedups={"train": SPEEDUP}))) == []


@pytest.mark.parametrize(
    ("value", "tier", "text"),
    [
        (
            4.0,
            "explained",
            " Confirmed: with all LayerNormalization (2 layers) in float32 the step takes 4.00 ms less (3.50 to 4.50 "
            "ms less), of 4.00 ms promised.",
        ),
        (0.0, "not_known", "0.000 ms less (−0.500 to 0.500 ms less), of 4.00 ms promised, so that alone is not the"),
        (1.9, "explained", " Tried: with all LayerNormalization (2 layers) in float32 the step takes 1.90 ms less"),
    ],
)
def test_what_came_of_it_is_said_beside_the_cause(explained: Account, value: float, tier: str, text: str) -> None:
    change = Intervention(variant="x", layers=("norm", "norm_1"), what="all LayerNormalization", promised_ms=4.0)
    tried = Confirmation(intervention=change, value=value, low=value - 0.5, high=value + 0.5, repeats=3)
    assert explained.tier == "explained"
    account_with_it = explained.model_copy(update={"confirmation": tried})
    assert account_with_it.tier == tier
    assert text in account_text("x", account_with_it)


def test_refuted_part_of_a_cause_leaves_the_rest(explained: Account) -> None:
    change = Intervention(variant="x", layers=("norm",), promised_ms=2.0)
    tried = Confirmation(intervention=change, value=0.0, low=-0.1, high=0.1, repeats=3)
    account_with_it = explained.model_copy(update={"confirmation": tried})
    assert account_with_it.tier == "explained"
    assert "Refuted: with `norm` in float32" in account_text("x", account_with_it)
