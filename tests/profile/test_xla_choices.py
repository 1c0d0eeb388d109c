"""What XLA's autotuner chose: the file that XLA writes, and the flag that asks for it."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import pytest

from stages.params import ModelParams, TaskParams, TrainParams, Variant
from stages.profile.records import ArmConfig
from stages.profile.worker_process import WorkerProcess
from stages.profile.xla_choices import XlaChoices, digest, read, record_to
from stages.tasks.spec import TaskSpec
from tests.profile.arm_records import arm_record
from tests.profile.fake_worker import CHOICES

FLAG = "--xla_gpu_dump_autotune_results_to"


def written(path: Path, nanos: int, config: int) -> str | None:
    path.write_text(CHOICES.format(nanos=nanos, config=config))
    return read(path)


def test_choices_are_the_same_whatever_time_was_measured(tmp_path: Path) -> None:
    path = tmp_path / "choices.txt"
    first, second, other = written(path, 31744, 4), written(path, 29000, 4), written(path, 31744, 8)
    assert first is not None
    assert other is not None
    assert first == second
    assert digest(first) != digest(other)
    assert len(digest(first)) == 12
    assert "run_time" not in first
    assert "nanos" not in first
    assert "num_warps: 4\n    }\n  }\n}\n" in first  # the rest is as XLA wrote it


@pytest.mark.parametrize("text", [None, "", "version: 3\n"])
def test_without_choices_there_is_nothing(text: str | None, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "choices.txt").write_text(text)
    assert read(tmp_path / "choices.txt") is None


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (None, f"{FLAG}=/a/b.txt"),
        ("--xla_gpu_autotune_level=2", f"--xla_gpu_autotune_level=2 {FLAG}=/a/b.txt"),
        (f"{FLAG}=/own.txt", f"{FLAG}=/own.txt"),
        ("/a/file/of/flags", "/a/file/of/flags"),
    ],
)
def test_flags_of_the_user_stay(flags: str | None, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    if flags is not None:
        monkeypatch.setenv("XLA_FLAGS", flags)
    record_to(Path("/a/b.txt"))
    assert os.environ["XLA_FLAGS"] == expected


def test_path_that_xla_would_split_is_not_given_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    record_to(Path("/a folder/b.txt"))
    assert "XLA_FLAGS" not in os.environ


def test_first_file_of_a_process_counts_and_dropped_ones_do_not(tmp_path: Path) -> None:
    choices, record = XlaChoices(tmp_path / "scratch"), arm_record()
    config = ArmConfig(TaskSpec(TaskParams(), ModelParams(), TrainParams()), Variant(policy="float32"), 0)
    for number in (1, 2):
        path = choices.recorded(config, "float32", 0).xla_choices
        assert path is not None
        assert not path.exists()
        path.write_text(CHOICES.format(nanos=1, config=number))
        choices.add_to(record, "float32", 0)
    choices.add_to(record, "float32", 1)
    assert list(record.xla_choices) == [0]
    assert "num_warps: 1" in record.xla_choices[0]
    assert XlaChoices(None).recorded(config, "float32", 0) is config


@pytest.mark.slow
def test_tensorflow_knows_the_flag(prepared_template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """XLA ends a process whose flags it does not know. On a CPU it tunes nothing, so there is no file."""
    spec = TaskSpec(TaskParams(), ModelParams(), TrainParams(batch_size=8), directory=prepared_template)
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "choices.txt"
    config = ArmConfig(spec, Variant(policy="float32", xla=True), 0, xla_choices=path)
    with closing(WorkerProcess("float32", config)) as worker:
        worker.call("warm_up", 1)
        assert worker.call("train_round", 1) > 0
        settings = worker.call("settings")
    assert settings.in_force.xla
    assert (read(path) is not None) is (settings.configuration.device == "GPU")
