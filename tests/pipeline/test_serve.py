"""The stage `serve`: what it writes and logs, and that a killed one goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tests.pipeline.conftest import LIMIT_S, child_environment
from tests.tracked_runs import by_name

if TYPE_CHECKING:
    from tests.pipeline.conftest import Checkout

VARIANTS = ("float32", "mixed_bfloat16")


def kill_when(checkout: Checkout, is_due: Callable[[], bool], log: Path, cores: int | None = None) -> str:
    """Starts the stage on at most so many cores, kills its process, and returns what it had printed."""
    usable = sorted(os.sched_getaffinity(0))[:cores]
    with log.open("w") as stream:
        stage = subprocess.Popen(
            ["python", "-m", "stages.serve"],
            cwd=checkout.root,
            env=child_environment(checkout.root),
            stdout=stream,
            stderr=stream,
        )
        os.sched_setaffinity(stage.pid, usable)  # before it has started a process
    ends_s = time.monotonic() + LIMIT_S
    while not is_due():
        assert stage.poll() is None, log.read_text()
        assert time.monotonic() < ends_s, log.read_text()
        time.sleep(0.005)
    stage.send_signal(signal.SIGKILL)
    stage.wait()
    return log.read_text()


def test_without_formats_an_empty_table_is_written_and_tensorflow_is_not_imported(finished: Checkout) -> None:
    assert finished.json("data/serve/serving.json") == {
        "schema_version": 1,
        "formats": [],
        "batch_sizes": [],
        "timed": [],
        "exports": [],
    }
    assert "serving" not in finished.json("data/compare/comparison.json")
    code = "import sys; from stages.serve import main; print('tensorflow' in sys.modules)"
    assert finished.check_output("python", "-c", code).splitlines()[-1] == "False"


def test_formats_are_exported_timed_judged_and_logged_also_after_kills(copied: Checkout, tmp_path: Path) -> None:
    """Killed after the first export, and after the first repeat: what was finished is taken over."""
    copied.configure({"serve.formats": ["keras", "litert", "saved_model"], "serve.batch_sizes": [1, 4]})
    copied.check_output("python", "-m", "stages.environment")

    def kept(pattern: str) -> list[Path]:
        return list((copied.root / ".halfstep/serve").glob(f"*/{pattern}"))

    # With one core one model is exported at a time, so that the second one is left.
    kill_when(copied, lambda: bool(kept(".exports/float32-0/manifest.json")), tmp_path / "first", cores=1)
    second = kill_when(copied, lambda: bool(kept("repeat-000.json")), tmp_path / "second")
    assert "serve: float32, seed 0: exported" not in second
    assert "serve: mixed_bfloat16, seed 0: exported to LiteRT, SavedModel in " in second

    output = copied.check_output("dvc", "repro")
    assert "Running stage 'train" not in output
    assert "Running stage 'profile'" not in output
    assert "serve: goes on after 1 repeats of an earlier measurement" in output
    assert "exported to" not in output

    served = copied.json("data/serve/serving.json")
    assert served["timed"] == ["keras", "litert", "saved_model"]
    rows = {(item["variant"], item["format"]) for item in served["exports"]}
    assert rows == {(variant, name) for variant in VARIANTS for name in ("litert", "saved_model")}
    for item in served["exports"]:
        assert (copied.root / "data/serve" / item["file"]).exists()
    serving = copied.json("data/compare/comparison.json")["serving"]
    assert serving["measures"] == ["inference_b1", "inference_b4"]
    assert {row["format"]: "verdict" in row for row in serving["rows"] if row["variant"] == "float32"} == {
        "litert": True,
        "saved_model": True,
    }
    assert "For inference, " in serving["sentence"]
    runs = by_name(copied.runs())
    assert {name for name in runs if name.startswith("serve ")} == {
        f"serve {variant} {name}" for variant in VARIANTS for name in ("litert", "saved_model")
    }
    logged = runs["serve float32 litert"].data
    assert logged.params["serve.format"] == "litert"
    assert {"inference/b1/p50_ms", "inference/b4/p50_ms", "file_kib", "export_s", "test_accuracy"} <= set(
        logged.metrics
    )
    of_same_graph = runs["serve mixed_bfloat16 litert"].data.metrics
    assert of_same_graph["inference/b1/p50_ms"] == logged.metrics["inference/b1/p50_ms"]
