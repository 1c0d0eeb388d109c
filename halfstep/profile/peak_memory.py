"""Peak memory of a process, or of its GPU, from a chosen moment on."""

from __future__ import annotations

import resource
from contextlib import suppress
from pathlib import Path

from halfstep.tensorflow_import import tf

_RESET_PEAK = "5"  # written to clear_refs, it resets the peak of the resident memory (proc_pid_clear_refs(5))


def reset_peak() -> None:
    """Forgets the peak so far. Without that file the peak since the start of the process remains."""
    if _has_gpu():
        tf.config.experimental.reset_memory_stats("GPU:0")
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text(_RESET_PEAK)


def peak_bytes() -> int:
    """Peak since the last reset: of the GPU's allocator, or without a GPU of the resident memory of this process."""
    if _has_gpu():
        return int(tf.config.experimental.get_memory_info("GPU:0")["peak"])
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _has_gpu() -> bool:
    return bool(tf.config.list_logical_devices("GPU"))
