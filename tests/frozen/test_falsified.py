"""Traces of a real measurement that are falsified afterwards: what may still be said of the cause.

The sum of the kinds always agrees with the calm step. So labels that are wrong throughout are believed: only a trial
tells.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pandas as pd
import pytest
import yaml

from halfstep.compare.case import Case
from halfstep.compare.document import judged
from halfstep.compare.study import Study, load_study, with_margin
from halfstep.params.schema import CompareParams
from tests.frozen import FOLDER, unpack

MINE = "mixed_float16"
Falsify = Callable[[pd.DataFrame], pd.DataFrame]


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("falsified")
        unpack("default", folder)
        patch.chdir(folder)
        given = yaml.safe_load((FOLDER / "default.params.yaml").read_text(encoding="utf-8"))
        train, sizes = given["train"], given["profile"]["inference_batch_sizes"]
        return load_study(given["compare"]["baseline"], train["variants"], train["seeds"], sizes)


def case_of(study: Study, falsify: Falsify) -> Case:
    candidates = tuple(
        replace(one, profile=replace(one.profile, account=falsify(one.profile.account.copy())))
        if one.variant == MINE and one.profile is not None
        else one
        for one in study.candidates
    )
    falsified = replace(study, candidates=candidates)
    cases = judged(falsified, with_margin(CompareParams(), falsified)).cases
    return next(case for case in cases if case.variant == MINE)


def times(factor: float, *kinds: str) -> Falsify:
    """The times of these kinds are multiplied; of all but the host without any."""

    def falsify(table: pd.DataFrame) -> pd.DataFrame:
        chosen = table["kind"].isin(kinds) if kinds else table["kind"] != "host"
        return table.assign(time_ms=table["time_ms"].where(~chosen, factor * table["time_ms"]))

    return falsify


def moved(share: float, before: str, after: str) -> Falsify:
    """A share of a kind's time is counted for another one."""

    def falsify(table: pd.DataFrame) -> pd.DataFrame:
        chosen = table["kind"] == before
        others = table[chosen].assign(kind=after, operation="Moved", time_ms=lambda rows: share * rows["time_ms"])
        return pd.concat([times(1 - share, before)(table), others], ignore_index=True)

    return falsify


def swapped(first: str, second: str) -> Falsify:
    return lambda table: table.assign(kind=table["kind"].replace({first: second, second: first}))


def invented(kind: str, share: float) -> Falsify:
    """An operation that takes a share of the traced step, in all repeats alike."""

    def falsify(table: pd.DataFrame) -> pd.DataFrame:
        steps_ms = table.groupby("process")["time_ms"].sum()
        row = table.iloc[[0]].assign(kind=kind, operation="Invented", layer="", layer_class="")
        rows = [row.assign(process=process, time_ms=share * step_ms) for process, step_ms in steps_ms.items()]
        return pd.concat([table, *rows], ignore_index=True)

    return falsify


def late(factor: float, kind: str) -> Falsify:
    """A kind is longer in the last repeat alone."""

    def falsify(table: pd.DataFrame) -> pd.DataFrame:
        chosen = (table["kind"] == kind) & (table["process"] == table["process"].max())
        return table.assign(time_ms=table["time_ms"].where(~chosen, factor * table["time_ms"]))

    return falsify


def without(kind: str) -> Falsify:
    return lambda table: table[table["kind"] != kind]


CASES: dict[str, tuple[Falsify, str]] = {
    "as measured": (lambda table: table, "explained"),
    "convolutions x 0.1": (times(0.1, "convolution"), "not_known"),
    "all x 0.2": (times(0.2), "not_known"),
    "normalization x 5": (times(5.0, "normalization"), "not_known"),
    "casts x 4": (times(4.0, "cast"), "suggested"),
    "convolutions x 3": (times(3.0, "convolution"), "not_known"),
    "host x 2": (times(2.0, "host"), "not_known"),
    "all and host x 1.3": (lambda table: table.assign(time_ms=1.3 * table["time_ms"]), "not_known"),
    "80 % of the convolutions as casts": (moved(0.8, "convolution", "cast"), "explained"),
    "convolutions and normalization swapped": (swapped("convolution", "normalization"), "explained"),
    "an optimizer of all of the change": (invented("optimizer", 0.4), "suggested"),
    "attention of half of it": (invented("attention", 0.2), "suggested"),
    "convolutions without time": (without("convolution"), "not_known"),
    "idle time without time": (without("host"), "suggested"),
    "convolutions x 3 in one repeat": (late(3.0, "convolution"), "not_known"),
    "all x 2 in one repeat, by its casts": (late(50.0, "cast"), "not_known"),
    "half of the idle time as input": (moved(0.5, "host", "input"), "explained"),
}


@pytest.mark.parametrize("name", CASES)
def test_falsified_traces_are_believed_no_further_than_this(name: str, study: Study) -> None:
    falsify, tier = CASES[name]
    case = case_of(study, falsify)
    assert case.account is not None
    assert case.account.tier == tier
    if tier == "not_known":
        assert not any(
            reason.code in ("emulated_float16", "slow_16bit_ops", "cast_overhead") for reason in case.reasons
        )
