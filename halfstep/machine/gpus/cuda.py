"""The order of the GPUs, asked of CUDA itself in a process of its own, which this file is."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import uuid
from collections.abc import Mapping
from typing import Any

_TIMEOUT_S = 60  # without the persistence mode, initialising the driver takes seconds


def ask(variables: Mapping[str, str]) -> list[str] | None:
    """UUIDs in CUDA's order without their prefixes; None if CUDA does not answer. Takes seconds.

    The process is another one, because CUDA's driver reads the variables once, and must not be forked.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-P", __file__],
            env=dict(variables),
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.split() or None


def uuids(cuda: Any) -> list[str]:
    """UUIDs in the order of CUDA, without their prefixes. Initialises the driver of this process, without a context.

    Args:
        cuda: CUDA's driver library.

    Raises:
        OSError: a call failed.
    """

    def call(name: str, *arguments: Any) -> None:
        if status := getattr(cuda, name)(*arguments):
            raise OSError(f"{name} returned {status}")

    call("cuInit", 0)
    count, identifiers = ctypes.c_int(), list[str]()
    call("cuDeviceGetCount", ctypes.byref(count))
    get_uuid = "cuDeviceGetUuid_v2" if hasattr(cuda, "cuDeviceGetUuid_v2") else "cuDeviceGetUuid"  # v2 knows slices
    for ordinal in range(count.value):
        device, octets = ctypes.c_int(), (ctypes.c_ubyte * 16)()
        call("cuDeviceGet", ctypes.byref(device), ordinal)
        call(get_uuid, ctypes.byref(octets), device)
        identifiers.append(str(uuid.UUID(bytes=bytes(octets))))
    return identifiers


if __name__ == "__main__":
    print("\n".join(uuids(ctypes.CDLL("libcuda.so.1"))))
