"""`python -m tools.acceptance`: its time budget, its report, and a whole run on the CPU. No GPU is needed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from halfstep.errors import HalfstepError
from halfstep.profile.trace.hlo import fusion_dtypes
from halfstep.profile.trace.xspace import parse, programs
from tools.acceptance import GPU_PARTS, Part, entries, run

MACHINE: dict[str, Any] = {
    "device": "NVIDIA H100",
    "cpu": {"model": "CPU"},
    "gpus": [{"name": "NVIDIA H100", "driver": "550.1"}],
    "versions": {"python": "3.11"},
    "settings": {},
    "software": {"tensorflow": "2.21.0", "gpus": [{"device_name": "NVIDIA H100"}], "loaded": {"cudnn": 90300}},
}
# Makes packages of the README's installation look absent that the program's docstring does not list.
ABSENT = """
import sys
from importlib.machinery import PathFinder

NAMES = {"mlflow", "dvc", "sklearn", "matplotlib", "jinja2", "sqlalchemy", "tensorboard", "git", "pytest"}

class Finder(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in NAMES else super().find_spec(name, path, target)

sys.meta_path[:] = [Finder if finder is PathFinder else finder for finder in sys.meta_path]
"""


def measured(part: Part, ratio: float = 2.0, limit: float | None = 4.0) -> dict[str, Any]:
    """The result of a part, with one kernel and one ratio over each baseline."""
    kernel = {"name": "nvjet_tst_128x256|x", "ms_per_step": 1.5, "dtype": None, "tensor_core": None}
    metrics = {"step_time_ms/mean": 12.3456, "profiler/matrix_tensor_core_percent": 91.25, "memory/peak_mib": 1234.0}
    row = {"arm": "mixed_float16", "ratio": ratio, "low": ratio - 0.1, "high": ratio + 0.1, "rounds": 9}
    row |= {"processes": 2, "limit": limit, "outside_the_limit": limit is not None and ratio - 0.1 > limit}
    arm = {"name": "mixed_float16", "device": "GPU", "batch_size": part.network.batch_size, "metrics": metrics}
    return {
        "protocol": {"rounds": 9, "steps_per_round": 5, "processes": 2, "timing_seconds": 3.0, "gpus": [{"gpu": 0}]},
        "arms": [arm | {"warnings": ["a warning"], "top_matrix_kernels": [kernel]}],
        "ratios": [row | {"over": over} for over in ("float32", "float32_no_tf32")],
        "reasons": {"mixed_float16": [{"code": "memory_bound", "text": "Mostly.", "advice": ""}]},
    }


def test_a_part_that_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    def start(part: Part, limit_s: float) -> dict[str, Any]:
        if part.name == "resnet50":
            raise HalfstepError("profile: float32: no kernel image\nis available")
        return measured(part)

    report = run(GPU_PARTS, tmp_path, 15, MACHINE, start)
    errors = {part["name"]: part["error"] for part in report["parts"] if "error" in part}
    assert errors == {"resnet50": "HalfstepError: profile: float32: no kernel image is available"}
    assert [part["name"] for part in report["parts"] if "arms" in part] == ["resnet20", "resnet20_xla", "resnet50_xla"]
    assert json.loads((tmp_path / "acceptance.json").read_text()) == report
    text = (tmp_path / "acceptance.md").read_text()
    assert "- resnet50: HalfstepError: profile: float32: no kernel image is available" in text


def test_what_was_measured_before_a_kill_is_written(tmp_path: Path) -> None:
    def start(part: Part, limit_s: float) -> dict[str, Any]:
        if part.name == "resnet50":
            raise KeyboardInterrupt
        return measured(part)

    with pytest.raises(KeyboardInterrupt):
        run(GPU_PARTS, tmp_path, 15, MACHINE, start)
    parts = json.loads((tmp_path / "acceptance.json").read_text())["parts"]
    assert [part["name"] for part in parts] == ["resnet20"]
    assert "| mixed_float16 | 12.346 |" in (tmp_path / "acceptance.md").read_text()


@pytest.mark.slow
def test_whole_run_on_the_cpu_of_a_copied_folder(tmp_path: Path, root: Path) -> None:
    """With only `halfstep` and `tools`, and without the packages that are not listed in the program's docstring."""
    carried, site, out = tmp_path / "carried", tmp_path / "site", tmp_path / "out"
    for folder in ("halfstep", "tools"):
        shutil.copytree(root / folder, carried / folder, ignore=shutil.ignore_patterns("__pycache__"))
    site.mkdir()
    (site / "sitecustomize.py").write_text(ABSENT)
    done = subprocess.run(
        [sys.executable, "-m", "tools.acceptance", "--out", str(out), "--cpu", "--minutes", "10"],
        cwd=carried,
        env=os.environ | {"PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=False,
    )
    logs = "\n".join(path.read_text() for path in (out / "logs").glob("*.log"))
    assert done.returncode == 0, done.stdout + done.stderr + logs
    report = json.loads((out / "acceptance.json").read_text())
    assert report["machine"]["software"]["tensorflow"]
    assert [part["name"] for part in report["parts"]] == ["tiny", "tiny_xla"]
    for part in report["parts"]:
        assert [arm["name"] for arm in part["arms"]] == list(entries(xla=False))
        assert {arm["in_force"]["xla"] for arm in part["arms"]} == {part["xla"]}
        assert all(arm["metrics"]["step_time_ms/mean"] > 0 for arm in part["arms"])
        assert all("profiler/step_time_ms" in arm["metrics"] for arm in part["arms"])
        assert {(ratio["over"], ratio["arm"]) for ratio in part["ratios"]} == {
            (over, arm) for over in ("float32", "float32_no_tf32") for arm in entries(xla=False) if arm != over
        }
        for arm in entries(xla=False):
            assert (out / "traces" / f"{part['name']}-{arm}.xplane.pb").stat().st_size > 1000
    plain = {arm["name"]: arm for arm in report["parts"][0]["arms"]}
    assert plain["mixed_bfloat16"]["metrics"]["profiler/compute_16bit_percent"] > 10
    assert plain["float32"]["top_matrix_kernels"]
    assert "says nothing about a GPU" in (out / "acceptance.md").read_text()
    planes = parse(out / "traces" / "tiny_xla-float32.xplane.pb").planes  # XLA's programs are in a trace
    fusions = fusion_dtypes(program for plane in planes for program in programs(plane))
    assert {"float32"} <= set(fusions.values()) <= {"float32", "other"}
    assert "## tiny_xla: cnn, 8 px, XLA on" in (out / "acceptance.md").read_text()
    assert not (out / "work").exists()
