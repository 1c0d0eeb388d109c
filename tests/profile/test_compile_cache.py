"""What XLA has compiled is loaded by later processes of the same arm, and by no other one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import namedtuple
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from halfstep.machine import fingerprint
from halfstep.params.schema import ModelParams, TaskParams, TrainParams, Variant
from halfstep.profile import compile_cache
from halfstep.profile.compile_cache import compiled, has_programs, keep, opened
from halfstep.profile.records import ArmSettings, FirstStep
from halfstep.profile.worker_process import WorkerProcess
from halfstep.system import files
from halfstep.system.fork_server import stop_servers
from halfstep.system.xla_flags import without_cache
from halfstep.tasks.trial import Trial

PROGRAM = "xla_compile_cache__1__2__XLA_CPU_JIT.pb"
TRIAL = Trial(TaskParams(), ModelParams(), TrainParams(batch_size=16), Variant(policy="float32", xla=True), seed=0)
FIRST = FirstStep(12.5, 20.0)


@pytest.fixture(autouse=True)
def machine(folder: Path) -> None:
    """The machine is known, and nothing has been compiled."""
    files.write_json(files.ENVIRONMENT_FILE, fingerprint.fingerprint())
    shutil.rmtree(compile_cache.FOLDER, ignore_errors=True)


def compile_once(trial: Trial = TRIAL, number: str = "0", content: bytes = b"program") -> Path:
    """What a process leaves that has compiled a program; returns its file."""
    with opened(trial, number) as given:
        assert given.programs is not None
        assert not has_programs(given)
        (given.programs / PROGRAM).write_bytes(content)
        keep(given, FIRST)
    return given.programs / PROGRAM


def is_loaded(trial: Trial = TRIAL, number: str = "0") -> bool:
    """Whether a process would find a program."""
    with opened(trial, number) as given:
        return has_programs(given)


def test_later_process_finds_what_was_compiled_and_how_long_that_took() -> None:
    path = compile_once()
    with opened(TRIAL, "0") as given:
        assert (given.programs, has_programs(given), compiled(given)) == (path.parent, True, FIRST)
    assert path.read_bytes() == b"program"


def test_killed_process_leaves_what_it_has_noted() -> None:
    """Its block does not end; what it wrote after the note is without a checksum, and may be half a file."""
    with ExitStack() as stack:
        given = stack.enter_context(opened(TRIAL, "0"))
        assert given.programs is not None
        (given.programs / PROGRAM).write_bytes(b"program")
        keep(given, FIRST)
        kept = shutil.copytree(given.programs, given.programs.with_name("killed"))
        (kept / "half.pb").write_bytes(b"half of a prog")
        path = given.programs
    shutil.rmtree(path)
    kept.rename(path)
    assert is_loaded()
    assert not (path / "half.pb").exists()


@pytest.mark.parametrize("content", [b"", b"prog", b"pr0gram"])
def test_damaged_program_is_removed(content: bytes) -> None:
    path = compile_once()
    path.write_bytes(content)
    assert not is_loaded()
    assert not path.exists()


@pytest.mark.parametrize("name", [".lock", "contents.json"])
def test_damaged_notes_are_compiled_anew(name: str) -> None:
    path = compile_once().with_name(name)
    path.write_bytes(b"{")
    assert is_loaded() is (name == ".lock")


@pytest.mark.parametrize(
    "change",
    [
        {"policy": "mixed_bfloat16"},
        {"tf32": False},
        {"threads": 1},
        {"env": {"XLA_FLAGS": "--xla_cpu_enable_fast_math=true"}},
    ],
)
def test_variant_with_other_settings_is_compiled_anew(change: dict[str, Any]) -> None:
    """TensorFlow's own key of a program has none of these."""
    compile_once()
    other = replace(TRIAL, variant=TRIAL.variant.model_copy(update=change))
    assert not is_loaded(other)
    assert is_loaded()


def test_other_flags_release_processor_machine_or_code_compile_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    compile_once()
    with monkeypatch.context() as changed:
        changed.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")
        assert not is_loaded()
    with monkeypatch.context() as changed:
        changed.setattr(fingerprint, "versions", lambda: {"python": "3.11.7", "tensorflow": "2.20.0"})
        assert not is_loaded()
    with monkeypatch.context() as changed:
        changed.setattr(fingerprint, "cpu_flags", lambda: ["avx2"])
        assert not is_loaded()
    assert is_loaded()
    files.write_json(files.ENVIRONMENT_FILE, files.with_checksum({"device": "another one"}))
    assert not is_loaded()
    files.write_json(files.ENVIRONMENT_FILE, fingerprint.fingerprint())
    files.TASK_FILE.parent.mkdir(parents=True, exist_ok=True)
    files.TASK_FILE.write_text("{}", encoding="utf-8")
    assert not is_loaded()
    files.TASK_FILE.unlink()
    assert is_loaded()


def test_flags_of_a_cache_are_no_other_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    before = fingerprint.fingerprint()
    monkeypatch.setenv("TF_XLA_FLAGS", "--tf_xla_persistent_cache_directory=/tmp/mine")
    assert fingerprint.fingerprint() == before
    monkeypatch.setenv("TF_XLA_FLAGS", "--tf_xla_auto_jit=2 --tf_xla_persistent_cache_read_only")
    assert fingerprint.fingerprint()["settings"]["TF_XLA_FLAGS"] == "--tf_xla_auto_jit=2"
    assert without_cache('--tf_xla_persistent_cache_directory="/a folder" --tf_xla_auto_jit=2') == "--tf_xla_auto_jit=2"


def test_copy_and_second_compilation_have_programs_of_their_own() -> None:
    compile_once()
    assert [is_loaded(TRIAL, number) for number in ("0", "1", "copy-0")] == [True, False, False]


def test_folder_that_another_process_uses_is_left_alone() -> None:
    with opened(TRIAL, "0") as first, opened(TRIAL, "0") as second:
        assert (first.programs is None, second.programs is None) == (False, True)


def test_without_space_or_a_folder_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "free")
    with monkeypatch.context() as changed:
        changed.setattr(shutil, "disk_usage", lambda _: usage(compile_cache.LEAST_FREE_BYTES - 1))
        with opened(TRIAL, "0") as given:
            assert given.programs is None
    shutil.rmtree(compile_cache.FOLDER, ignore_errors=True)
    compile_cache.FOLDER.parent.mkdir(exist_ok=True)
    compile_cache.FOLDER.write_text("a file", encoding="utf-8")
    with opened(TRIAL, "0") as given:
        assert given.programs is None
    compile_cache.FOLDER.unlink()


def test_oldest_programs_leave_first_and_those_in_use_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_cache, "MOST_BYTES", 25)
    paths = [compile_once(number=str(number), content=b"x" * 10) for number in range(2)]
    with opened(TRIAL, "0"):
        paths.append(compile_once(number="2", content=b"x" * 10))
    assert [path.exists() for path in paths] == [True, False, True]


def test_nothing_is_left_where_nothing_is_compiled() -> None:
    with opened(TRIAL, "0") as given:
        pass
    assert given.programs is not None
    assert not given.programs.exists()


def test_process_loads_what_another_one_compiled(folder: Path) -> None:
    """Real ones: the second writes nothing new, and needs less time. A user's own folder is not used."""
    seconds, found = list[float](), list[set[str]]()
    own = folder / "own"
    variant = TRIAL.variant.model_copy(update={"env": {"TF_XLA_FLAGS": f"--tf_xla_persistent_cache_directory={own}"}})
    try:
        for _ in range(2):
            with opened(replace(TRIAL, variant=variant), "0") as given:
                with closing(WorkerProcess("float32", given)) as worker:
                    assert worker.call(ArmSettings, "settings").in_force.xla
                    seconds.append(worker.call(FirstStep, "warm_up", 1).seconds)
                assert given.programs is not None
                found.append({path.name for path in given.programs.glob("xla_*")})
    finally:
        stop_servers()
    assert found[0] == found[1] != set()
    assert seconds[1] < 0.8 * seconds[0]
    assert not own.exists()


def test_false_lines_of_loading_are_not_shown_and_others_are(folder: Path) -> None:
    given = folder / "my programs"  # with a space
    given.mkdir()
    code = """
import os, sys
from pathlib import Path
from halfstep.system.xla_flags import VARIABLE, programs_in
from halfstep.tensorflow_import import tf
hidden = sys.argv[2] == "hidden"
with programs_in(Path(sys.argv[1]) if hidden else None):
    if not hidden:
        os.environ[VARIABLE] = f'--tf_xla_persistent_cache_directory="{sys.argv[1]}"'
    print(float(tf.function(lambda x: tf.reduce_sum(tf.tanh(x) @ x), jit_compile=True)(tf.ones((4, 4)))))
    print("what went wrong", file=sys.stderr)
"""
    variables = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "2"}  # as halfstep sets it
    compiled, loaded, shown = (
        subprocess.run([sys.executable, "-c", code, given, how], env=variables, capture_output=True, text=True)
        for how in ("hidden", "hidden", "shown")
    )
    assert compiled.stdout == loaded.stdout == shown.stdout != ""
    assert len(list(given.iterdir())) == 1
    assert "cpu_aot_loader" in shown.stderr
    assert "cpu_aot_loader" not in loaded.stderr
    assert "XlaSerializedCacheEntry" not in loaded.stderr
    assert "what went wrong" in loaded.stderr
