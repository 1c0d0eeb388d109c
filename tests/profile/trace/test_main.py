from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "halfstep", "trace", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_output_is_one_json_object(xspaces: ModuleType, save: Callable[..., Path], tmp_path: Path) -> None:
    path = save(xspaces.cpu_space([xspaces.HostOperation("StatefulPartitionedCall/dense/MatMul:MatMul", 300)]))
    graph = tmp_path / "graph.json"
    graph.write_text('{"dense/MatMul": "bfloat16"}')
    done = run(path.parents[3], "--graph", graph)

    assert (done.returncode, done.stderr) == (0, "")
    printed = json.loads(done.stdout)
    assert printed["device_type"] == "CPU"
    assert not {"device_count", "kernels"} & set(printed)
    assert printed["profiler/compute_16bit_percent"] == 100
    assert printed["profiler/step_time_ms"] == 1
    assert len(printed["steps"]) == 4
    assert set(printed["steps"][0]) == {
        "step_time_ms", "host_compute_ms", "input_ms", "output_ms", "compilation_ms", "other_ms"
    }  # fmt: skip
    assert printed["top_operations"][0] == {
        "type": "MatMul", "name": "StatefulPartitionedCall/dense/MatMul", "host_or_device": "Host",
        "occurrences": 4, "self_time_us": 1200.0, "dtype": "bfloat16",
    }  # fmt: skip
    assert printed["warnings"] == []


def test_kernels_without_operations_are_the_top_operations(xspaces: ModuleType, save: Callable[..., Path]) -> None:
    done = run(save(xspaces.gpu_space([xspaces.Kernel("ampere_h16816gemm_128x128", 300, operation="")])))
    top = json.loads(done.stdout)["top_operations"]
    assert [(item["type"], item["name"], item["tensor_core"]) for item in top] == [
        ("Kernel", "ampere_h16816gemm_128x128", True)
    ]


@pytest.mark.parametrize("hidden", ["\x1b[2J", "\x9b2J", "\x7f", "\u202eabc", "\u2028"])
def test_names_in_a_trace_send_nothing_to_the_terminal(
    hidden: str, xspaces: ModuleType, save: Callable[..., Path]
) -> None:
    done = run(save(xspaces.gpu_space([xspaces.Kernel(hidden, 300, operation="")])))
    assert done.stdout.replace("\n", "").isprintable()
    assert json.loads(done.stdout)["top_operations"][0]["name"] == hidden


def test_errors_are_one_line_with_status_2(tmp_path: Path) -> None:
    missing = run(tmp_path / "nowhere")
    broken = tmp_path / "graph.json"
    broken.write_text("[1]")
    for done in (missing, run(tmp_path), run(tmp_path, "--graph", broken)):
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.count("\n") == 1
        assert "Traceback" not in done.stderr
    assert str(tmp_path / "nowhere") in missing.stderr


def test_one_trace_is_read_at_a_time(tmp_path: Path) -> None:
    done = run(tmp_path, tmp_path / "after")
    assert (done.returncode, done.stdout) == (2, "")
    assert "unrecognized arguments" in done.stderr
