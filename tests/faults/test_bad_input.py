"""Each user error or fault is reported in one line, with its exit status and without a traceback."""

from __future__ import annotations

import importlib
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from halfstep.machine.fingerprint import fingerprint
from halfstep.system import files
from tests.faults.cases import Case, all_cases
from tests.programs import STAGES, module_of

CASES = all_cases()


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A `data/` directory with the inputs of `compare`."""
    from tests.small_study import SmallStudy

    root = tmp_path_factory.mktemp("complete")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        SmallStudy(root).write()
    return root / "data"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store_template: Path) -> Iterator[Path]:
    """A working directory with a tracking store and the description of the machine."""
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("DVC_STAGE", raising=False)
    shutil.copy(store_template, tmp_path / "mlflow.db")
    yield tmp_path
    signal.signal(signal.SIGTERM, before)


def set_up(case: Case, root: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if case.data == "prepared":
        shutil.copytree(request.getfixturevalue("prepared_template"), root / files.PREPARED)
    if case.data == "complete":
        shutil.copytree(request.getfixturevalue("complete"), root / "data")
    elif case.command != "environment":
        files.write_json(root / files.ENVIRONMENT_FILE, fingerprint())
    text = case.params if isinstance(case.params, str) else yaml.safe_dump(case.params or {"tracking": {}})
    (root / "params.yaml").write_text(text, encoding="utf-8")
    if case.arrange:
        case.arrange(root, monkeypatch)


def run(command: str, monkeypatch: pytest.MonkeyPatch) -> int:
    module, *arguments = command.split()
    page = module_of(module)
    entry = importlib.import_module(page if module in STAGES else f"{page}.command").main
    monkeypatch.setattr(sys, "argv", [module, *arguments])
    return int(entry())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace("\n", " "))
def test_case_gives_one_line(
    case: Case,
    project: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    if reason := case.skip():
        pytest.skip(reason)
    set_up(case, project, request, monkeypatch)
    capfd.readouterr()
    status = run(case.command, monkeypatch)
    stderr = capfd.readouterr().err
    # Other tests may measure on this machine at the same time.
    lines = [line for line in stderr.splitlines() if not line.startswith("profile: waiting for process ")]
    assert status == case.status, stderr
    assert len(lines) == len(case.fragments), stderr
    for line, fragment in zip(lines, case.fragments, strict=True):
        assert fragment in line
    assert "Traceback" not in stderr
    assert "s3cret" not in stderr
    assert all(character.isprintable() for line in lines for character in line)
    assert not list(project.rglob("hacked"))


def test_names_are_unique() -> None:
    assert [name for name, count in Counter(case.name for case in CASES).items() if count > 1] == []
