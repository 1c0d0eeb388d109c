"""The GPUs of this machine, and which of them a CUDA program in this environment uses. Creates no CUDA context."""

from __future__ import annotations

from halfstep.machine.gpus.description import Gpu, Visible
from halfstep.machine.gpus.driver import installed, nvml
from halfstep.machine.gpus.selection import are_hidden, select, visible

__all__ = ["Gpu", "Visible", "are_hidden", "installed", "nvml", "select", "visible"]
