"""What NVML and nvidia-smi answered on GPUs of other people, who published it. Read on GitHub, November 2026.

What a source does not show is left out, or said to be made up. None was found for an L4, or for slices of an H100.
"""

from __future__ import annotations

from tests.fake_nvml import Device, error


def t4() -> Device:
    """Name, UUID and place: NVIDIA/nvidia-container-toolkit issue 188. It cannot be partitioned: MIG mode is N/A.

    Memory as on a T4 data sheet, capability from NVIDIA's list.
    """
    return Device(
        name="Tesla T4",
        uuid="GPU-39cd9454-0976-646a-acef-01a35ad02034",
        bus_id="00000000:83:00.0",
        memory_mib=15360,
        capability=(7, 5),
    )


def a100() -> Device:
    """Clocks and power limit: NVIDIA/nvidia-docker issue 1648 (A100, idle). UUID: XuehaiPan/nvitop pull request 8."""
    device = Device(
        name="NVIDIA A100-SXM4-80GB",
        uuid="GPU-74edc72b-204b-7996-59f6-bff24ec89c23",
        bus_id="00000000:07:00.0",
        memory_mib=81920,
        capability=(8, 0),
        answers={
            "ClockInfo": 1080,
            "MaxClockInfo": 1410,
            "EnforcedPowerLimit": 400_000,
            # temperature and power of an A100 under load: Project-HAMi/HAMi issue 320
            "Temperature": 83,
            "PowerUsage": 146_000,
        },
    )
    device.set_flags("GpuIdle")  # as in kubeflow/kubeflow issue 68
    return device


def capped_geforce() -> Device:
    """A GeForce at its power limit, under load: ollama/ollama issue 6163. UUID made up."""
    device = Device(name="GeForce", uuid="GPU-00000000-0000-0000-0000-000000000001", answers={"Temperature": 77})
    device.set_flags("SwPowerCap")
    return device


def partitioned_a100() -> Device:
    """An A100 in seven slices: DataDog/datadog-agent pull request 33120 (nvidia-smi -L, driver 535.216.01).

    Memory of a slice and multiprocessors as in the table of profiles in NVIDIA's MIG user guide; instances made up.
    """
    uuids = (
        "MIG-feb88891-0321-5fef-9c87-d4af3b54259e",
        "MIG-a25704ba-3a06-5299-a795-fd7cf4d13973",
        "MIG-50f1c4c9-1508-5e8d-bb06-d08145b22e01",
        "MIG-36c795f2-5cf7-55d6-af30-e535e79b7bb6",
        "MIG-3f45d38c-8cee-503e-b806-a1f1bdceedeb",
        "MIG-96655de9-9525-58f9-a62b-0e4c1cc1c265",
        "MIG-1aae4990-b962-574e-8375-119d6d9b9687",
    )
    slices = [
        Device(
            name="NVIDIA A100-SXM4-80GB MIG 1g.10gb",
            uuid=uuid,
            memory_mib=9728,
            instance=(7 + number, 0),
            multiprocessors=14,
            gpu_slices=1,
        )
        for number, uuid in enumerate(uuids)
    ]
    return Device(
        name="NVIDIA A100-SXM4-80GB",
        uuid="GPU-7fdaf0a5-179b-f636-d15d-daf243e3ff16",
        memory_mib=81920,
        capability=(8, 0),
        slices=slices,
        answers={"ComputeRunningProcesses": error("NO_PERMISSION")},  # of the whole GPU
    )


def mixed() -> list[Device]:
    """Two models in one machine: YoRyan/nuxhash pull request 10 (nvidia-smi --query-gpu=name,pci.bus,index,uuid)."""
    rows = (
        ("GeForce GTX 1060 6GB", "01", "GPU-f3da2e71-6e43-729a-e3ae-f731ed96d50c"),
        ("GeForce GTX 1080 Ti", "02", "GPU-15ea7bf9-1a0e-2d7f-9c62-c28e5ca1aaf1"),
        ("GeForce GTX 1060 6GB", "03", "GPU-3dc4f2b0-6e1b-c088-c342-4367c334795a"),
        ("GeForce GTX 1060 6GB", "09", "GPU-03ddeff3-19c4-6676-d02d-6942bd80630d"),
        ("GeForce GTX 1060 6GB", "0A", "GPU-ff3318a7-f0dd-dc57-1fb8-cc95ba35c56e"),
    )
    return [Device(name=name, uuid=uuid, bus_id=f"00000000:{bus}:00.0", capability=(6, 1)) for name, bus, uuid in rows]


# Process ids of the host that a container sees: XuehaiPan/nvitop pull request 8 (GPU 1, instance 3)
HOST_PIDS = (3366, 34965)
