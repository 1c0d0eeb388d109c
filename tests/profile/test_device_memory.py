"""The memory of the GPU: which GPU is read, what an arm keeps, and whether another one fits."""

from __future__ import annotations

import sys

import pytest
from stages.profile.device_memory import (
    MIB,
    RESERVE,
    DeviceMemory,
    DoesNotFitError,
    OutOfMemory,
    OutOfMemoryError,
    Room,
    device_memory_reader,
)

from stages import gpus
from stages.errors import ProfileError
from stages.gpus import cuda
from tests.fake_nvml import FakeNvml
from tests.nvml_recordings import a100, partitioned_a100, t4

GIB = 2**30
T4_MIB, SLICE_MIB = 15360, 9728


def read(monkeypatch: pytest.MonkeyPatch, library: FakeNvml, **variables: str) -> DeviceMemory | None:
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setitem(sys.modules, "pynvml", library)
    monkeypatch.setattr(cuda, "ask", lambda _: None)
    return device_memory_reader(gpus.visible())()


def test_memory_is_that_of_the_first_visible_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    small, large = t4(), a100()
    small.answers["used"] = 1024
    library = FakeNvml(large, small)
    expected = DeviceMemory(T4_MIB * MIB, (T4_MIB - 1024) * MIB)
    assert read(monkeypatch, library, CUDA_VISIBLE_DEVICES=small.uuid[:12]) == expected
    assert read(monkeypatch, library, CUDA_VISIBLE_DEVICES="1", CUDA_DEVICE_ORDER="PCI_BUS_ID") == expected
    assert read(monkeypatch, library) is None  # CUDA calls the fastest its first one, and did not say which that is
    assert read(monkeypatch, library, CUDA_VISIBLE_DEVICES="-1") is None


def test_memory_of_a_slice_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = partitioned_a100()
    assert whole.slices is not None
    found = read(monkeypatch, FakeNvml(whole), CUDA_VISIBLE_DEVICES=whole.slices[3].uuid)
    assert found == DeviceMemory(SLICE_MIB * MIB, SLICE_MIB * MIB)


def test_without_a_gpu_there_is_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read(monkeypatch, FakeNvml()) is None
    assert not Room(lambda: None).is_on_gpu


class Device:
    """A GPU on which other programs use 1 GiB."""

    def __init__(self, total_gib: float) -> None:
        self.total_bytes, self.used_bytes = int(total_gib * GIB), GIB

    def read(self) -> DeviceMemory:
        return DeviceMemory(self.total_bytes, self.total_bytes - self.used_bytes)

    def start(self, room: Room, name: str, others: list[str], gib: float = 2) -> None:
        with room.starting(name, others):
            self.used_bytes += int(gib * GIB)


def test_arm_keeps_what_is_free_before_its_start_and_not_after_its_warm_up() -> None:
    device = Device(16)
    room = Room(device.read)
    device.start(room, "float32", [])
    device.start(room, "mixed_bfloat16", ["float32"], gib=1)
    assert room.kept_bytes == {"float32": 2 * GIB, "mixed_bfloat16": GIB}


@pytest.mark.parametrize(
    ("total_gib", "fits"), [(1 + 2 * 2 * (1 + RESERVE), True), (1 + 2 * 2 * (1 + RESERVE / 2), False)]
)
def test_first_start_beside_others_leaves_a_reserve(total_gib: float, fits: bool) -> None:
    device = Device(total_gib + 0.001)
    room = Room(device.read)
    device.start(room, "float32", [])
    used_bytes = device.used_bytes
    if fits:
        device.start(room, "mixed_bfloat16", ["float32"])
        return
    with pytest.raises(DoesNotFitError, match="float32, mixed_bfloat16 do not fit on the GPU at once") as raised:
        device.start(room, "mixed_bfloat16", ["float32"])
    assert "\n" not in str(raised.value)
    assert "4,096 MiB" in str(raised.value)
    assert device.used_bytes == used_bytes  # it was not even started


def test_arm_that_keeps_more_than_expected_leaves_no_reserve() -> None:
    device = Device(8)
    room = Room(device.read)
    device.start(room, "float32", [])
    with pytest.raises(DoesNotFitError, match="do not fit"):
        device.start(room, "_bridge_xla_on", ["float32"], gib=4.5)
    assert room.kept_bytes["_bridge_xla_on"] == 4.5 * GIB


def test_later_starts_may_use_the_reserve() -> None:
    device = Device(6)
    room = Room(device.read)
    device.start(room, "float32", [])
    device.start(room, "_control", ["float32"])
    device.used_bytes = GIB + GIB // 2  # another program has taken a part of it meanwhile
    device.start(room, "float32", [])
    device.start(room, "_control", ["float32"])
    device.used_bytes = 2 * GIB + GIB // 2
    device.start(room, "float32", [])
    with pytest.raises(DoesNotFitError):
        device.start(room, "_control", ["float32"])


def test_pairs_fit_where_each_of_them_does() -> None:
    device = Device(6)
    room = Room(device.read)
    for name, gib in (("float32", 2), ("mixed_bfloat16", 1), ("_bridge_xla_on", 3)):
        device.used_bytes = GIB
        device.start(room, name, [], gib)
    device.used_bytes = GIB
    assert room.fit([("float32", "mixed_bfloat16")])
    assert not room.fit([("float32", "mixed_bfloat16"), ("float32", "_bridge_xla_on")])


def test_any_failure_beside_others_may_be_a_lack_of_memory() -> None:
    """cuDNN and cuBLAS report it as an internal error, and a process may die of it."""
    room = Room(Device(16).read)
    error = ProfileError("profile: b: CUDNN_STATUS_INTERNAL_ERROR")
    with pytest.raises(DoesNotFitError) as raised, room.starting("b", ["a"]):
        raise error
    assert str(raised.value) == "b did not start beside a (b: CUDNN_STATUS_INTERNAL_ERROR)"
    with pytest.raises(ProfileError, match=f"^{error}$") as raised, room.starting("b", []):  # type: ignore[assignment]
        raise error
    assert not isinstance(raised.value, DoesNotFitError)


def test_arm_that_does_not_fit_alone_is_one_line_with_the_numbers() -> None:
    shortage = OutOfMemory(128, 14 * GIB, "OOM when allocating tensor with shape[128,64,112,112]")
    with pytest.raises(ProfileError) as raised, Room(Device(16).read).starting("float32", []):
        raise OutOfMemoryError("float32", shortage)
    message = str(raised.value)
    assert "\n" not in message
    for part in ("float32", "14,336 MiB", "16,384 MiB", "1,024 MiB", "shape[128,64,112,112]", "train.batch_size (128)"):
        assert part in message
    assert "profile.inference_batch_sizes" in message
    assert "train.variants" in message


def test_unknown_memory_is_enough_until_it_runs_out() -> None:
    room = Room(lambda: None)
    with room.starting("b", ["a"]):
        pass
    assert room.fit([("a", "b")])
    assert room.kept_bytes == {}
