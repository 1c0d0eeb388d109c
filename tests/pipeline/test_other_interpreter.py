"""A training runs in the interpreter that its entry names, under the same supervision and with the same results."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.other_interpreter import other_interpreter
from tests.pipeline.conftest import Checkout

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("cold_python")]
TRAINED = "data/train/mixed_bfloat16-0"
NOTED = "noted"


@pytest.fixture
def checkout(copied: Checkout, tmp_path: Path) -> Checkout:
    """A pipeline with one variant in another interpreter, which notes its processes that train."""
    other = other_interpreter(tmp_path / "venv")
    (packages,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    (packages / "sitecustomize.py").write_text(
        "import sys\n"
        "if any('halfstep.train.process' in word for word in sys.orig_argv):\n"
        f"    open({str(tmp_path / NOTED)!r}, 'a').write(f'{{sys.executable}}\\n')\n"
    )
    copied.configure({"variants.mixed_bfloat16.python": str(other)})
    copied.stage("environment")
    return copied


def test_training_runs_in_the_interpreter_of_its_entry_where_a_failure_is_one_line(
    checkout: Checkout, tmp_path: Path
) -> None:
    before = checkout.json(f"{TRAINED}/metrics.json")
    done = checkout.stage("train", "--variant", "mixed_bfloat16", "--seed", "0")
    assert (done.returncode, done.stderr) == (0, "")
    assert set((tmp_path / NOTED).read_text().splitlines()) == {str(tmp_path / "venv" / "bin" / "python")}
    after = checkout.json(f"{TRAINED}/metrics.json")
    assert {key: after[key] for key in ("test_loss", "initial_weights")} == {
        key: before[key] for key in ("test_loss", "initial_weights")
    }
    (run,) = checkout.runs()
    assert run.data.params["variant.python"] == str(tmp_path / "venv" / "bin" / "python")
    assert run.info.status == "FINISHED"

    (checkout.root / "data/prepared/manifest.json").unlink()
    done = checkout.stage("train", "--variant", "mixed_bfloat16", "--seed", "0")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert "data/prepared" in done.stderr
