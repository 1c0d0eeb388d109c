"""Fixtures of the tests with a tracking server."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.servers import FaultyServer, mlflow_server


@pytest.fixture
def server(tmp_path: Path, store_template: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyServer]:
    """MLflow's server, with an empty working directory that holds its store."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(store_template, tmp_path / "mlflow.db")
    with mlflow_server(tmp_path) as started:
        yield started
