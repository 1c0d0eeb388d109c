from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture(scope="session")
def xspaces() -> ModuleType:
    """The module `xspaces.py` in this folder, which builds synthetic traces."""
    spec = importlib.util.spec_from_file_location("xspaces", Path(__file__).with_name("xspaces.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["xspaces"] = module  # dataclasses look up their module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def save(tmp_path: Path) -> Callable[..., Path]:
    """Writes a synthetic trace to a file."""

    def write(space: Any, name: str = "host") -> Path:
        path: Path = space.save(tmp_path / "log" / "plugins" / "profile" / "run" / f"{name}.xplane.pb")
        return path

    return write
