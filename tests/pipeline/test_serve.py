"""The stage `serve`: what it writes and logs, and that a killed one goes on."""

from __future__ import annotations

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


def kill_when(checkout: Checkout, is_due: Callable[[], bool], log: Path) -> str:
    """Starts the stage, kills its process, and returns what it had printed."""
    with log.open("w") as stream:
        stage = subprocess.Popen(
            ["python", "-m", "stages.serve"],
            cwd=checkout.root,
            env=child_environment(checkout.root),
            stdout=stream,
            stderr=stream,
        )
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
        "schema_version": 2,
        "formats": [],
        "batch_sizes": [],
        "arms": [],
        "exports": [],
        "inputs": [],
        "outputs": [],
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

    kill_when(copied, lambda: bool(kept(".exports/0/manifest.json")), tmp_path / "first")
    second = kill_when(copied, lambda: bool(kept("repeat-000.json")), tmp_path / "second")
    assert "exported" not in second

    output = copied.check_output("dvc", "repro")
    assert "Running stage 'train" not in output
    assert "Running stage 'profile'" not in output
    assert "serve: goes on after 1 repeats of an earlier measurement" in output
    assert "exported to" not in output

    served = copied.json("data/serve/serving.json")
    assert {arm["format"] for arm in served["arms"]} == {"litert", "saved_model"}
    assert [(item["variant"], item["format"]) for item in served["exports"]] == [
        ("float32", "litert"),
        ("float32", "saved_model"),
    ]
    for item in served["exports"]:
        file = copied.root / "data/serve" / item["file"]
        assert file.exists()
        assert {"README.md", "bench.py"} <= {path.name for path in file.parent.iterdir()}
    for arm in served["arms"]:
        assert {1, 4} <= {batch["batch_size"] for batch in arm["alone"]["batches"]}
    serving = copied.json("data/compare/comparison.json")["serving"]
    assert serving["measures"] == ["inference_b1", "inference_b4"]
    assert all("verdict" in row for row in serving["rows"])
    assert "For inference, " in serving["sentence"]
    runs = by_name(copied.runs())
    assert {"serve float32 litert", "serve float32 saved_model"} <= {*runs}
    logged = runs["serve float32 litert"].data
    assert logged.params["serve.format"] == "litert"
    assert {"inference/b1/p50_ms", "inference/b4/mean_ms", "file_kib", "export_s", "test_accuracy"} <= set(
        logged.metrics
    )
    assert logged.metrics["memory/peak_mib"] < 400  # of a process without TensorFlow
    assert logged.metrics["inference/b1/first_call_ms"] > 0
