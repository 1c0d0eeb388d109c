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


def two_traces(xspaces: ModuleType, save: Callable[..., Path], operation: str = "dense/MatMul:MatMul") -> list[Path]:
    kernels = {"before": ("ampere_sgemm_128x64_tn", 300), "after": ("ampere_h16816gemm_128x128", 100)}
    return [save(xspaces.gpu_space([xspaces.Kernel(*kernel, operation)]), name) for name, kernel in kernels.items()]


def test_two_traces_are_compared_in_a_table(xspaces: ModuleType, save: Callable[..., Path]) -> None:
    before, after = two_traces(xspaces, save)
    done = run(before, after)
    assert (done.returncode, done.stderr) == (0, "")
    for fragment in ("before.xplane.pb", "step time, ms", "tensor core, %", "MatMul", "noise of unknown size"):
        assert fragment in done.stdout


def test_two_traces_are_compared_as_json(xspaces: ModuleType, save: Callable[..., Path]) -> None:
    before, after = two_traces(xspaces, save)
    done = run("--json", before, after)
    assert (done.returncode, done.stderr) == (0, "")
    printed = json.loads(done.stdout)
    assert printed["before"] == json.loads(run(before).stdout)
    assert printed["after"] == json.loads(run(after).stdout)
    assert printed["metric_deltas"]["profiler/compute_16bit_percent"] == 100
    assert printed["metric_deltas"]["profiler/step_time_ms"] == pytest.approx(-0.2)
    (change,) = printed["operations_gained"]
    assert change == {
        "layer": "dense", "operation": "MatMul", "before_ms": pytest.approx(0.3), "after_ms": pytest.approx(0.1),
        "before_dtype": "float32", "after_dtype": "float16", "delta_ms": pytest.approx(-0.2),
    }  # fmt: skip
    assert printed["operations_lost"] == []
    assert printed["operations_per_step"] is True
    assert "noise of unknown size" in printed["notes"][0]


def test_names_in_a_comparison_send_nothing_to_the_terminal(xspaces: ModuleType, save: Callable[..., Path]) -> None:
    paths = two_traces(xspaces, save, "\x1b[2J/x/MatMul:MatMul")
    for arguments in (paths, ["--json", *paths]):
        assert run(*arguments).stdout.replace("\n", "").isprintable()


def test_graph_of_each_trace(xspaces: ModuleType, save: Callable[..., Path], tmp_path: Path) -> None:
    arguments: list[str | Path] = ["--json"]
    for dtype in ("float32", "bfloat16"):
        arguments.append(save(xspaces.cpu_space([xspaces.HostOperation("dense/MatMul:MatMul", 300)]), dtype))
        (tmp_path / f"{dtype}.json").write_text(json.dumps({"dense/MatMul": dtype}))
        arguments += ["--graph", tmp_path / f"{dtype}.json"]
    printed = json.loads(run(*arguments).stdout)
    assert printed["metric_deltas"]["profiler/compute_16bit_percent"] == 100


def test_errors_of_a_comparison_are_one_line_with_status_2(
    xspaces: ModuleType, save: Callable[..., Path], tmp_path: Path
) -> None:
    before, after = two_traces(xspaces, save)
    graph = tmp_path / "graph.json"
    graph.write_text("{}")
    for done in (run(before, tmp_path / "nowhere"), run(before, after, "--graph", graph)):
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.count("\n") == 1


def test_errors_are_one_line_with_status_2(tmp_path: Path) -> None:
    missing = run(tmp_path / "nowhere")
    broken = tmp_path / "graph.json"
    broken.write_text("[1]")
    for done in (missing, run(tmp_path), run(tmp_path, "--graph", broken)):
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.count("\n") == 1
        assert "Traceback" not in done.stderr
    assert str(tmp_path / "nowhere") in missing.stderr
