from __future__ import annotations

import json
from pathlib import Path

import pytest

from halfstep.errors import CorruptFileError, DataError
from halfstep.machine import cgroups, fingerprint
from halfstep.system import files


def test_fingerprint_is_stable_and_valid_json() -> None:
    first, second = fingerprint.fingerprint(), fingerprint.fingerprint()
    assert first == second
    assert json.loads(json.dumps(first, allow_nan=False)) == first
    assert set(first) == {"device", "cpu", "gpus", "versions", "settings", "sha256"}


@pytest.mark.parametrize(
    ("name", "included"),
    [
        ("OMP_NUM_THREADS", True),
        ("TF_ENABLE_ONEDNN_OPTS", True),
        ("NVIDIA_TF32_OVERRIDE", True),
        ("XLA_FLAGS", True),
        ("CUDA_VISIBLE_DEVICES", True),
        ("TF_CPP_MIN_LOG_LEVEL", False),
        ("HOME_OMP_NUM_THREADS", False),
        ("NO_SUCH_SETTING", False),
    ],
)
def test_only_settings_that_change_a_timing_are_included(
    name: str, included: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(name, raising=False)
    before = fingerprint.fingerprint()
    monkeypatch.setenv(name, "1")
    after = fingerprint.fingerprint()
    assert (after["settings"].get(name) == "1") is included
    assert (fingerprint.digest(before) != fingerprint.digest(after)) is included


def test_uuid_of_a_gpu_does_not_change_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rented machine has another GPU of the same model at each start."""
    fingerprints = []
    for uuid in ("GPU-39cd9454-0976-646a-acef-01a35ad02034", "GPU-155f1bc9-417b-3036-9dca-b296981e1d65"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", f"{uuid},MIG-feb88891-0321-5fef-9c87-d4af3b54259e")
        fingerprints.append(fingerprint.fingerprint())
    assert fingerprints[0] == fingerprints[1]
    assert fingerprints[0]["settings"]["CUDA_VISIBLE_DEVICES"] == "GPU,MIG"


def test_digest_does_not_depend_on_the_order_of_keys() -> None:
    assert fingerprint.digest({"a": 1, "b": 2}) == fingerprint.digest({"b": 2, "a": 1})
    assert fingerprint.digest({"a": 1}) != fingerprint.digest({"a": 2})
    assert len(fingerprint.digest({})) == 12


def test_changed_file_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "environment.json"
    with pytest.raises(DataError, match="is missing"):
        fingerprint.read(path)
    environment = fingerprint.fingerprint()
    files.write_json(path, environment)
    assert fingerprint.read(path) == environment
    for changed in ({"device": "another"}, {"sha256": "0" * 64}, {"added": 1}):
        files.write_json(path, environment | changed)
        with pytest.raises(CorruptFileError, match=r"environment\.json is damaged"):
            fingerprint.read(path)
    files.write_json(path, [1])
    with pytest.raises(CorruptFileError, match=r"environment\.json is damaged"):
        fingerprint.read(path)


def test_changed_cpu_quota_changes_the_fingerprint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "ROOT", tmp_path)
    assert "quota_cores" not in fingerprint.fingerprint()["cpu"]
    files.write_text(tmp_path / "sys/fs/cgroup/cpu.max", "150000 100000\n")
    assert fingerprint.fingerprint()["cpu"]["quota_cores"] == 1.5


def test_instruction_sets_of_arm_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel calls them Features there, as of an AWS Graviton 3."""
    features = "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm sve i8mm bf16 dgh rng"
    monkeypatch.setattr(fingerprint, "_proc_cpuinfo", lambda: {"processor": "0", "Features": features})
    assert fingerprint.fingerprint()["cpu"]["instruction_sets"] == ["asimd", "asimdhp", "bf16"]


def test_libraries_of_cuda_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, version in (("nvidia-cublas-cu12", "12.5.3.2"), ("nvidia-nccl-cu13", "2.28")):
        folder = tmp_path / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    monkeypatch.syspath_prepend(tmp_path)
    versions = fingerprint.versions()
    assert (versions["nvidia-cublas-cu12"], versions["nvidia-nccl-cu13"]) == ("12.5.3.2", "2.28")
