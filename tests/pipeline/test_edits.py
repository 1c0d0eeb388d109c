"""`params.yaml` is edited while a stage runs: its result is not recorded as that of the new values."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from tests.faults.cases_of_own_code import own_code

if TYPE_CHECKING:
    from tests.pipeline.conftest import Checkout

# Edits the parameters in the stage that the file `edit` names, once: another program does, whose changes stay.
BUILD = "import subprocess, sys; subprocess.run([sys.executable, 'edit.py'], check=True)"
EDIT = """
import os
from pathlib import Path
try:  # several processes of a stage build the model
    wanted = Path("edit").read_text()
    if not os.environ.get("DVC_STAGE", "").startswith(wanted):
        raise FileNotFoundError
    Path("edit").rename("edited")
except FileNotFoundError:
    pass
else:
    text = Path("params.yaml").read_text()
    for name, value in (("learning_rate", "0.05"), ("split_seed", "9")):
        head, _, rest = text.partition(f"{name}: ")
        text = f"{head}{name}: {value}\\n" + rest.partition("\\n")[2]
    Path("params.yaml").write_text(text)
"""
TASK = {
    "task.name": "own:build",
    "compare.quality_margin": 1.0,
    "train.batch_size": 8,
    "train.learning_rate": 0.005,
    "data.split_seed": 0,
}


def test_edit_during_each_stage(copied: Checkout) -> None:
    (copied.root / "own.py").write_text(own_code(build=BUILD))
    (copied.root / "edit.py").write_text(EDIT)
    copied.configure(TASK)
    for stage, parameter, kept in (
        ("prepare", "data.split_seed (0, now 9)", "prepare: takes what an earlier run has prepared"),
        ("train@float32", "train.learning_rate (0.005, now 0.05)", "train float32 seed 0: resumed from step"),
        ("profile", "train.learning_rate (0.005, now 0.05)", "profile: goes on after"),
    ):
        (copied.root / "edit").write_text(stage)
        with copied.restored("params.yaml"):
            done = copied.run("dvc", "repro")
            output = done.stdout + done.stderr
            assert done.returncode != 0, stage
            assert re.search(rf"^\w+: {re.escape(parameter)}.* changed while the stage ran", output, re.MULTILINE), (
                output
            )
            assert "Traceback" not in output
            assert "learning_rate: 0.05\n" not in lock(copied)
            assert "split_seed: 9\n" not in lock(copied)
        again = copied.check_output("dvc", "repro", stage if stage != "train@float32" else "train@float32-0")
        assert kept in again, again
    assert "learning_rate: 0.005\n" in lock(copied)


def lock(copied: Checkout) -> str:
    return Path(copied.root / "dvc.lock").read_text(encoding="utf-8")
