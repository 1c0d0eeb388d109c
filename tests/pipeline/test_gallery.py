"""A study of the gallery is measured in a copy of a checkout, killed in between, measured again, and made ready."""

from __future__ import annotations

import getpass
import os
import platform
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.pipeline.conftest import child_environment

if TYPE_CHECKING:
    from tests.pipeline.conftest import Checkout

pytestmark = pytest.mark.slow
COMMAND = ("python", "-m", "tools.gallery", "--study", "regression")
SHORT = "    profile.max_seconds: 30\n"
EPOCHS = "    train.epochs: 40\n"
ALL, FEW = "[float32, mixed_float16, mixed_bfloat16, float32_batch_128, float32_xla]", "[float32, mixed_bfloat16]"
EDIT = "# an edit that is not committed\n"


@pytest.fixture
def checkout(pristine: Checkout, tmp_path: Path) -> Checkout:
    """A checkout in which the quickest study is measured for a moment."""
    copy = pristine.copy(tmp_path / "halfstep")
    path = copy.root / "gallery/studies.yaml"
    amounts = {"processes": 2, "rounds": 2, "warmup_steps": 2, "trace_steps": 2, "inference_batch_sizes": [1]}
    few = "".join(f"    profile.{name}: {amount}\n" for name, amount in (amounts | {"max_seconds": 2}).items())
    text = path.read_text()
    assert text.count(SHORT) == text.count(ALL) == text.count(EPOCHS) == 1
    path.write_text(text.replace(SHORT, few).replace(ALL, FEW).replace(EPOCHS, "    train.epochs: 2\n"))
    copy.commit("A short study")
    return copy


def killed_at(checkout: Checkout, stage: str, log: Path, *arguments: str) -> str:
    """What the command prints until a stage has run for a second, when all of it is killed."""
    with (
        log.open("w") as output,
        subprocess.Popen(
            [*COMMAND, *arguments],
            cwd=checkout.root,
            env=child_environment(checkout.root),
            stdout=output,
            stderr=output,
            start_new_session=True,
        ) as process,
    ):
        until_s = time.monotonic() + 120
        while f"Running stage '{stage}'" not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < until_s, log.read_text()
            time.sleep(0.1)
        time.sleep(1.0)
        os.killpg(process.pid, signal.SIGKILL)
    return log.read_text()


def test_study_goes_on_after_a_kill_is_measured_again_and_made_ready(checkout: Checkout, tmp_path: Path) -> None:
    params = checkout.root / "params.yaml"
    text = params.read_text() + EDIT
    params.write_text(text)
    killed_at(checkout, "train@float32-0", tmp_path / "killed.txt", "--occasion", "first")
    params.write_text(params.read_text().replace(EDIT, ""))

    printed = checkout.check_output(*COMMAND, "--occasion", "first")
    assert "Stage 'prepare' is cached - skipping run" in printed
    assert re.search(r"^gallery: regression: .*mixed_bfloat16 ", printed, re.MULTILINE), printed
    assert checkout.check_output("git", "status", "--short") == ""
    assert "gallery-regression-first" in checkout.check_output("dvc", "exp", "show", "--csv")
    (first,) = (checkout.root / "data/gallery").glob("*/regression-first.json")
    result = checkout.json(f"data/gallery/{first.parent.name}/regression-first.json")
    assert set(result["comparison"]["candidates"]) == {"mixed_bfloat16"}
    assert result["comparison"]["setup"]["task"]["name"] == "examples.regression:build"  # not what params.yaml says
    assert not result["dirty"]

    assert "all of it has been measured here" in checkout.check_output(*COMMAND)
    second = checkout.check_output(*COMMAND, "--occasion", "second")
    assert "Running stage 'profile'" in second
    assert "Running stage 'train@float32-0'" not in second
    assert "hold the mean of the others" in second
    page = (checkout.root / "data/gallery/gallery.md").read_text()
    assert "2 runs, spread " in page

    assert "open a pull request" in checkout.check_output("python", "-m", "tools.gallery", "--add")
    added = checkout.check_output("git", "status", "--short", "--untracked-files=all").split()
    published = [name for name in added if name.startswith("gallery/results/")]
    assert sorted(Path(name).name for name in published) == ["regression-first.json", "regression-second.json"]
    private = (str(checkout.root), str(Path.home()), platform.node(), f"/{getpass.getuser()}")
    for name in (*published, "docs/gallery.md", "docs/gallery.svg"):
        content = (checkout.root / name).read_text()
        assert [word for word in private if f"{word}/" in content or f'"{word}' in content] == [], name
