"""Advice that is carried out as a DVC experiment: the workspace stays as it is, whatever happens."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests import warm
from tests.pipeline.conftest import child_environment

if TYPE_CHECKING:
    from tests.pipeline.conftest import Checkout

pytestmark = pytest.mark.slow
EDIT = "# an edit that is not committed\n"


def status(checkout: Checkout) -> str:
    return checkout.check_output("git", "status", "--short", "--branch")


def edit(checkout: Checkout) -> str:
    path = checkout.root / "params.yaml"
    path.write_text(path.read_text() + EDIT)
    return path.read_text()


@pytest.fixture(scope="module")
def without_onednn(finished: Checkout, tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    checkout = finished.copy(tmp_path_factory.mktemp("advised") / "halfstep")
    checkout.configure({"variants.float32.onednn": False, "variants.mixed_bfloat16.onednn": False})
    checkout.repro()
    checkout.commit("Without oneDNN")
    return checkout


@pytest.fixture
def advised(without_onednn: Checkout, tmp_path: Path) -> Checkout:
    """A checkout whose baseline runs without oneDNN, which is a reason with a change."""
    return without_onednn.copy(tmp_path / "halfstep")


def test_change_is_tried_as_an_experiment_after_kills_and_the_workspace_is_as_before(
    advised: Checkout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = json.loads(advised.check_output("python", "-m", "halfstep", "advise", "--json"))
    (advice,) = [item for item in listed if item["change"] and item["change"]["key"] == "variants.float32.onednn"]
    assert (advice["new_variant"], advice["change"]["to"]) == ("float32_onednn_on", True)
    before, text = advised.snapshot(), edit(advised)
    command = ["python", "-m", "halfstep", "advise", str(advice["number"])]
    with monkeypatch.context() as cold:
        cold.delenv(warm.PYTHON)
        kill_at_ten_moments(advised, command, tmp_path)

    output = advised.check_output(*command)  # what was left behind does not disturb it
    assert "Running stage 'train@float32_onednn_on-0'" in output
    assert "Running stage 'train@float32-0'" not in output
    assert (advised.root / "params.yaml").read_text() == text
    assert advised.snapshot() == before
    assert status(advised).splitlines()[1:] == [" M params.yaml"]
    assert clones(advised) == []

    (outcome,) = re.findall(r"^advise: float32_onednn_on: (.*)", output, re.MULTILINE)
    ratio = re.match(r"[\d.]+× \(([\d.]+) to [\d.]+\) over its parent float32, (kept|dropped); against", outcome)
    assert ratio is not None, outcome
    assert ratio[2] == "dropped" or float(ratio[1]) >= 1.05
    assert "advise-float32-onednn-on" in advised.check_output("dvc", "exp", "show", "--csv")
    parents = {run.data.params.get("variant.parent") for run in advised.runs()}
    assert "float32" in parents


def test_formats_that_were_left_out_are_tried_without_a_training(advised: Checkout) -> None:
    text = edit(advised)
    output = advised.check_output("python", "-m", "halfstep", "advise", "formats")
    assert "Running stage 'serve'" in output
    assert "Running stage 'train" not in output
    assert "Running stage 'profile'" not in output
    assert re.search(r"^advise: For inference, .* Experiment advise-formats\.$", output, re.MULTILINE), output
    assert (advised.root / "params.yaml").read_text() == text
    shown = json.loads(advised.check_output("dvc", "metrics", "diff", "HEAD", "advise-formats", "--json"))
    assert "serve float32 litert" in {name.partition(".")[0] for name in shown["data/compare/metrics.json"]}


def test_failed_experiment_is_one_line_and_loses_nothing(advised: Checkout) -> None:
    """A file that the stage needs is missing in the last commit."""
    text = edit(advised)
    listed = json.loads(advised.check_output("python", "-m", "halfstep", "advise", "--json"))
    (advice,) = [item for item in listed if item["change"] and item["change"]["key"] == "variants.float32.onednn"]
    path = advised.root / "halfstep/train/fitting.py"
    source = path.read_text()
    path.write_text("raise SystemExit('broken')\n")
    done = advised.run("python", "-m", "halfstep", "advise", str(advice["number"]))
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("the experiment advise-float32-onednn-on failed, as shown above")
    assert path.read_text() == "raise SystemExit('broken')\n"
    assert (advised.root / "params.yaml").read_text() == text
    path.write_text(source)


def kill_at_ten_moments(advised: Checkout, command: list[str], logs: Path) -> None:
    """No kill touches the workspace."""
    text, listing, before = (advised.root / "params.yaml").read_text(), advised.snapshot(), status(advised)
    left = 0
    for moment in range(10):
        log = logs / f"{moment}.txt"
        with (
            log.open("w") as output,
            subprocess.Popen(
                command,
                cwd=advised.root,
                env=child_environment(advised.root),
                stdout=output,
                stderr=output,
                start_new_session=True,
            ) as process,
        ):
            wait_for_a_clone(advised, process)
            time.sleep(0.7 * moment)
            assert process.poll() is None, log.read_text()
            os.killpg(process.pid, signal.SIGKILL)
        left += len(clones(advised)) > 0
        assert (advised.root / "params.yaml").read_text() == text
        assert status(advised) == before
        assert advised.snapshot() == listing
    assert left > 0, "no kill came while there was a clone"


def clones(checkout: Checkout) -> list[Path]:
    return [*(checkout.root / ".halfstep/advise").glob("*")]


def wait_for_a_clone(checkout: Checkout, process: subprocess.Popen[bytes]) -> None:
    until_s = time.monotonic() + 60
    earlier = set(clones(checkout))
    while not set(clones(checkout)) - earlier and time.monotonic() < until_s and process.poll() is None:
        time.sleep(0.01)
