"""Results of the gallery, made of the comparisons of the frozen studies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from halfstep.results.comparison import Candidate, Comparison
from halfstep.system import files
from tests.frozen import FOLDER
from tools.gallery import results, studies
from tools.gallery.results import Result

Make = Callable[..., Result]
KNOWN = studies.read(Path(__file__).parents[2] / studies.STUDIES)


def frozen(name: str) -> Comparison:
    path = FOLDER / f"{name}.json"
    return Comparison.of(files.read_json(path), path)


def scaled(candidate: Candidate, factor: float) -> Candidate:
    """The candidate with other speed-ups: on another occasion it was faster or slower."""

    def times(speedup: Any) -> Any:
        return speedup.model_copy(update={key: getattr(speedup, key) * factor for key in ("value", "low", "high")})

    speedups = {measure: times(speedup) for measure, speedup in candidate.speedups.items()}
    return candidate.model_copy(update={"speedup": speedups or None})


@pytest.fixture
def make() -> Make:
    """Makes a result of a frozen study."""

    def of(
        study: str = "cnn", name: str = "default", occasion: str = "2026-01-01", factor: float = 1.0, **changes: Any
    ) -> Result:
        comparison = results.public(frozen(name))
        candidates = {key: scaled(candidate, factor) for key, candidate in comparison.candidates.items()}
        environment = {**comparison.environment, **changes.pop("environment", {})}
        fields: dict[str, Any] = {
            "study": study,
            "occasion": occasion,
            "date": "2026-01-01",
            "commit": "0" * 40,
            "dirty": False,
            "halfstep": results.version(),
            "machine": results.machine_id(environment),
            "parameters_sha256": KNOWN[study].sha256(environment),
            "seconds": 120.0,
            "comparison": comparison.model_copy(update={"candidates": candidates, "environment": environment}),
        }
        return Result(**(fields | changes))

    return of


@pytest.fixture
def folder(tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with the studies and the examples that they name."""
    for name in ("gallery/studies.yaml", "pyproject.toml", "params.yaml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes((root / name).read_bytes())
    monkeypatch.chdir(tmp_path)
    return tmp_path
