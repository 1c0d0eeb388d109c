"""`halfstep`: one command, of which each program is imported when it is called."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from halfstep.__main__ import PROGRAMS, main


def test_help_lists_the_programs_without_their_libraries(root: Path) -> None:
    code = (
        "import sys; from halfstep.__main__ import main; main(['--help'], standalone_mode=False); print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    *lines, modules = done.stdout.splitlines()
    assert [line.split()[0] for line in lines[lines.index("Commands:") + 1 :]] == sorted(PROGRAMS)
    assert {"numpy", "pandas", "pydantic", "mlflow", "tensorflow", "dvc"}.isdisjoint(modules.split())


@pytest.mark.parametrize("name", PROGRAMS)
def test_program_is_called_with_its_arguments_and_its_status_is_that_of_the_command(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[str]] = []

    def program() -> int:
        seen.append(sys.argv)
        return 2

    monkeypatch.setattr(importlib.import_module(PROGRAMS[name][0]), "main", program)
    done = CliRunner().invoke(main, [name, "FILE", "--minutes", "3", "--help"])
    assert seen == [[f"halfstep {name}", "FILE", "--minutes", "3", "--help"]]
    assert done.exit_code == 2


def test_unknown_program_is_named(root: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "halfstep", "judg"], cwd=root, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "No such command 'judg'" in done.stderr
