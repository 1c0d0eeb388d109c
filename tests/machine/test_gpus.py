"""Which GPUs CUDA shows: driver-less machines, indices, UUIDs, slices, and orders that only CUDA knows."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from halfstep.machine import fingerprint, gpus
from halfstep.machine.gpus import cuda
from tests.fake_nvml import Device, FakeNvml, error
from tests.nvml_recordings import a100, mixed, partitioned_a100, t4

ORDER = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(cuda, "ask", lambda _: pytest.fail("CUDA is asked without need"))


def install(monkeypatch: pytest.MonkeyPatch, *devices: Device, **versions: Any) -> FakeNvml:
    library = FakeNvml(*devices, **versions)
    monkeypatch.setitem(sys.modules, "pynvml", library)
    return library


def answer(monkeypatch: pytest.MonkeyPatch, uuids: Sequence[str] | None) -> None:
    """What CUDA answers; UUIDs with their prefixes."""
    bare_uuids = None if uuids is None else [uuid[4:] for uuid in uuids]
    monkeypatch.setattr(cuda, "ask", lambda _: bare_uuids)


def names(visible: gpus.Visible) -> list[str]:
    return [gpu.uuid for gpu in visible.gpus]


def test_machine_without_a_driver_has_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoDriver(FakeNvml):
        def nvmlInit(self) -> None:  # noqa: N802
            raise error("LIBRARY_NOT_FOUND")

    monkeypatch.setitem(sys.modules, "pynvml", NoDriver())
    assert gpus.installed() == ()
    assert gpus.visible() == gpus.Visible(())
    assert fingerprint.gpus() == []


def test_one_gpu_is_described_without_its_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    library = install(monkeypatch, t4())
    first, second = fingerprint.gpus(), fingerprint.gpus()
    assert (
        first
        == second
        == [
            {
                "name": "Tesla T4",
                "memory_gib": 15,
                "compute_capability": "7.5",
                "driver": "535.216.01",
                "driver_cuda": "12.2",
            }
        ]
    )
    assert fingerprint.fingerprint()["device"] == "Tesla T4"
    assert library.depth == 0


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, [0, 1]),
        ("1", [1]),
        (" 1 , 0 ", [1, 0]),
        ("1,-1,0", [1]),  # the example of the CUDA programming guide: an invalid entry hides what follows
        ("1,2,0", [1]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("GPU-74edc72b-204b-7996-59f6-bff24ec89c23", [0]),
        ("GPU-39", [1]),
        ("gpu-39cd9454", []),
        ("GPU-", []),
        ("GPU-5", []),
        ("GPU-39,0", [1, 0]),
        ("0,0", [0]),
    ],
)
def test_visible_devices_are_read_as_cuda_does(
    value: str | None, shown: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = [a100(), t4()]
    install(monkeypatch, *reversed(machine))  # NVML's order is not that of the PCI bus
    visible = gpus.visible(ORDER | ({} if value is None else {"CUDA_VISIBLE_DEVICES": value}))
    assert names(visible) == [machine[index].uuid for index in shown]
    assert visible.identified
    assert len(gpus.installed()) == 2


def test_hidden_gpu_is_not_in_the_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, t4())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    machine_fingerprint = fingerprint.fingerprint()
    assert machine_fingerprint["gpus"] == []
    assert "cores" in machine_fingerprint["device"]


def test_mixed_gpus_are_in_the_order_that_cuda_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fastest comes first, in PCI order it is the second."""
    machine = mixed()
    install(monkeypatch, *machine)
    answer(monkeypatch, [machine[index].uuid for index in (1, 0, 2, 3, 4)])
    assert names(gpus.visible({}))[0] == machine[1].uuid
    machine_fingerprint = fingerprint.fingerprint()
    assert machine_fingerprint["gpus"][0]["name"] == "GeForce GTX 1080 Ti"
    assert machine_fingerprint["device"].startswith("GeForce GTX 1080 Ti, GeForce GTX 1060 6GB")


@pytest.mark.parametrize("answered", [None, ["GPU-11111111-1111-1111-1111-111111111111"]])
def test_mixed_gpus_are_not_known_without_cuda(answered: list[str] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, *mixed())
    answer(monkeypatch, answered)
    visible = gpus.visible({"CUDA_VISIBLE_DEVICES": "1"})
    assert not visible.identified
    assert len(visible.gpus) == 5
    described = fingerprint.gpus()
    assert [gpu["name"] for gpu in described] == ["GeForce GTX 1060 6GB"] * 4 + ["GeForce GTX 1080 Ti"]
    assert all(gpu["identified"] is False and gpu["compute_capability"] == "6.1" for gpu in described)
    assert " or " in fingerprint.fingerprint()["device"]
    by_uuid = gpus.visible({"CUDA_VISIBLE_DEVICES": mixed()[1].uuid})
    assert by_uuid.identified
    assert by_uuid.gpus[0].name == "GeForce GTX 1080 Ti"


@pytest.mark.parametrize(
    ("variable", "hidden"),
    [
        *((None, False), ("0", False), ("1,0", False), (t4().uuid[:12], False), ("0,9", False)),
        *(("-1", True), ("", True), ("none", True), ("2", True), ("9,0", True), ("GPU-8f1c", True), ("MIG-8f1c", True)),
    ],
)
def test_hidden_gpus(variable: str | None, hidden: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are hidden where a program sees none; CUDA need not be asked for that."""
    install(monkeypatch, a100(), t4())
    variables = {} if variable is None else {"CUDA_VISIBLE_DEVICES": variable}
    assert gpus.are_hidden(gpus.installed(), variables) is hidden


def test_equal_gpus_give_the_same_fingerprint_whichever_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = [t4(), t4()]
    devices[1].uuid, devices[1].bus_id = "GPU-155f1bc9-417b-3036-9dca-b296981e1d65", "00000000:86:00.0"
    install(monkeypatch, *devices)
    answer(monkeypatch, None)
    visible = gpus.visible({"CUDA_VISIBLE_DEVICES": "1"})
    assert (len(visible.gpus), len(visible.candidates), visible.identified) == (1, 2, False)
    monkeypatch.setattr(cuda, "ask", lambda _: pytest.fail("CUDA is asked without need"))
    assert fingerprint.fingerprint()["device"] == "2 x Tesla T4"
    assert "identified" not in fingerprint.gpus()[0]


def test_slice_has_its_own_memory_and_share(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = partitioned_a100()
    assert whole.slices is not None
    install(monkeypatch, whole)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", whole.slices[2].uuid)
    (gpu,) = gpus.visible().gpus
    assert gpu.parent is not None
    assert (gpu.uuid, gpu.whole.uuid) == (whole.slices[2].uuid, whole.uuid)
    assert fingerprint.gpus() == [
        {
            "name": "NVIDIA A100-SXM4-80GB MIG 1g.10gb",
            "memory_gib": 10,
            "compute_capability": "8.0",
            "driver": "535.216.01",
            "driver_cuda": "12.2",
            "slice_of": "NVIDIA A100-SXM4-80GB",
            "multiprocessors": 14,
            "gpu_slices": 1,
            "compute_slices": 1,
        }
    ]


@pytest.mark.parametrize(
    ("value", "index"),
    [
        ("MIG-36c795f2", 3),
        ("MIG-GPU-7fdaf0a5-179b-f636-d15d-daf243e3ff16/8/0", 1),  # before driver 470
        ("MIG-GPU-7fdaf0a5-179b-f636-d15d-daf243e3ff16/3/0", None),
        ("MIG-36c795f2,MIG-feb88891", 3),  # a program uses one slice
        ("MIG-0", None),
    ],
)
def test_slices_by_name(value: str, index: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = partitioned_a100()
    assert whole.slices is not None
    install(monkeypatch, whole)
    visible = gpus.visible({"CUDA_VISIBLE_DEVICES": value})
    assert names(visible) == ([] if index is None else [whole.slices[index].uuid])
    assert visible.identified


@pytest.mark.parametrize("variables", [{}, {"CUDA_VISIBLE_DEVICES": "0"}, ORDER])
def test_first_slice_is_the_one_that_cuda_answers(variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    whole = partitioned_a100()
    assert whole.slices is not None
    install(monkeypatch, whole)
    answer(monkeypatch, [whole.slices[4].uuid])
    assert names(gpus.visible(variables)) == [whole.slices[4].uuid]
    answer(monkeypatch, None)
    visible = gpus.visible(variables)
    assert (len(visible.gpus), visible.identified) == (1, False)


def test_lost_gpu_is_listed_and_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = t4()
    lost.answers["HandleByIndex"] = error("GPU_IS_LOST")
    install(monkeypatch, lost)
    (gpu,) = gpus.installed()
    assert gpu.name == "unknown (GPU is lost)"
    assert gpus.visible({}).gpus == ()


class FakeCuda:
    """CUDA's driver library: it fills what it is given, and returns a status."""

    def __init__(self, *uuids: bytes, status: int = 0) -> None:
        self._uuids, self._status = uuids, status

    def cuInit(self, flags: int) -> int:  # noqa: N802
        assert flags == 0
        return self._status

    def cuDeviceGetCount(self, count: Any) -> int:  # noqa: N802
        count._obj.value = len(self._uuids)
        return 0

    def cuDeviceGet(self, device: Any, ordinal: int) -> int:  # noqa: N802
        device._obj.value = ordinal
        return 0

    def cuDeviceGetUuid(self, octets: Any, device: ctypes.c_int) -> int:  # noqa: N802
        octets._obj[:] = list(self._uuids[device.value])
        return 0


def test_uuids_of_cuda_are_those_of_nvml() -> None:
    octets = bytes.fromhex(t4().uuid.removeprefix("GPU-").replace("-", ""))
    assert cuda.uuids(FakeCuda(octets, bytes(16))) == [t4().uuid[4:], "00000000-0000-0000-0000-000000000000"]
    with pytest.raises(OSError, match="cuInit returned 100"):
        cuda.uuids(FakeCuda(status=100))


def test_partitioned_gpu_without_slices_cannot_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = partitioned_a100()
    whole.slices = []
    install(monkeypatch, whole)
    assert gpus.visible({}).gpus == ()
    assert len(gpus.installed()) == 1


def test_query_that_is_not_supported_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Device(name="NVIDIA GB10", uuid="GPU-00000000-0000-0000-0000-000000000002"))
    (gpu,) = fingerprint.gpus()
    assert set(gpu) == {"name", "driver", "driver_cuda"}  # it has no memory of its own
