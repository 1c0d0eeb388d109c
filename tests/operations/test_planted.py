"""A layer that costs time in one arm only: the account names its kind and the layer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.benchmarks.planting import KINDS, largest, planted


@pytest.mark.slow
@pytest.mark.parametrize("what", ["product", "casts"])
def test_account_names_what_was_planted(what: str, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{root}")
    accounts = planted(what, repeats=2, turns=2, steps=3)
    assert largest(accounts) == (KINDS[what], "planted")
    planted_layer = accounts.change(*2 * [lambda rows: rows["layer"] == "planted"])
    assert (planted_layer.baseline_ms, planted_layer.candidate_ms > 0) == (0.0, True)
