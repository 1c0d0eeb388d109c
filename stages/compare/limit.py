"""The limit: the best speed-up that the baseline's own trace allows, before anything is measured in 16 bit.

Amdahl's law over three kinds of time. A step of S ms holds M ms of matrix products, B ms of operations that memory
bounds, and the rest, R = S - M - B (launches, input, what cannot be told):

    limit = S / (R + M / r + B / 2)

Half the bytes are moved in half the time at best, so memory-bound work gains 2; the rest gains nothing. r is what the
processor's data sheet promises for dense 16-bit matrix products: over float32 8 (V100: 125 over 15.7 TFLOPS), 16
(A100: 312 over 19.5) and 14.8 (H100: 989 over 67), over TF32 2 (A100, H100); on CPUs 2 (AVX512_BF16) and 16 (AMX_BF16).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from stages.compare.arms import Operation, Profile
from stages.compare.machine import Ceilings, ceilings

_MATRIX_OPERATION = re.compile(r"MatMul|Conv[23]D|DepthwiseConv2d|Einsum|XlaDot|CudnnRNN")
_INPUT_OPERATION = re.compile(r"Dataset|Iterator|PyFunc|EagerPyFunc")
_SETTINGS = {"xla": False, "onednn": True}  # these change what a step consists of


@dataclass(frozen=True)
class Work:
    """Where the time of a traced step goes, in milliseconds; `tf32_ms` is the part of `matrix_ms` in TF32."""

    step_ms: float
    matrix_ms: float
    memory_ms: float
    tf32_ms: float = 0.0

    @property
    def rest_ms(self) -> float:
        """What no precision makes faster."""
        return self.step_ms - self.matrix_ms - self.memory_ms


def train_limit(baseline: Profile, candidate: Profile, environment: dict[str, Any]) -> float | None:
    """Best speed-up of a training step that the candidate's precision can bring over the baseline, a ratio.

    None where it cannot be told: no trace, none with operations in it (XLA on a CPU), a candidate that does not lower
    the precision or changes more than that, or a processor that does not compute in the candidate's type.
    """
    if "float16" in policy_of(baseline) or "float16" not in policy_of(candidate) or _differs(baseline, candidate):
        return None
    work, factors = work_of(baseline), ceilings(policy_of(candidate), baseline.device_type, environment)
    return best_speedup(work, factors) if work and factors else None


def best_speedup(work: Work, factors: Ceilings) -> float:
    """The limit of this module's formula, a ratio."""
    matrix_ms = (work.matrix_ms - work.tf32_ms) / factors.matrix + work.tf32_ms / factors.matrix_from_tf32
    return work.step_ms / (work.rest_ms + matrix_ms + work.memory_ms / factors.memory)


def limit_if_compute_faster(step_ms: float, compute_ms: float, times: float) -> float:
    """Speed-up of a step whose computation alone gets `times` faster (Amdahl); `math.inf` makes it free."""
    return step_ms / (step_ms - compute_ms + compute_ms / times)


def work_of(profile: Profile) -> Work | None:
    """Splits a profile's step by the shares of its compute time, None where its trace does not tell them."""
    step_ms, total_ms = profile.metrics.get("profiler/step_time_ms"), compute_ms(profile)
    shares = _measured_shares(profile) or _shares_by_type(compute_operations(profile))
    if not step_ms or total_ms is None or shares is None:
        return None
    matrix, memory, tf32 = (share * min(total_ms, step_ms) for share in shares)
    return Work(step_ms, matrix, memory, min(tf32, matrix))


def compute_ms(profile: Profile) -> float | None:
    """Computation in the traced step in milliseconds: on the GPU, or on the host where there is none."""
    name = "device_compute_ms" if profile.device_type == "GPU" else "host_compute_ms"
    return profile.metrics.get(f"profiler/{name}")


def compute_operations(profile: Profile) -> list[Operation]:
    """Operations that compute: without those of the input, and on a GPU those alone that kernels are behind."""
    on_gpu = profile.device_type == "GPU"
    return [
        operation
        for operation in profile.operations
        if not _INPUT_OPERATION.match(operation.type) and (operation.tensor_core is not None or not on_gpu)
    ]


def policy_of(profile: Profile) -> str:
    """Keras dtype policy of a profile."""
    return str(profile.entry.get("policy", ""))


def is_matrix(operation: Operation) -> bool:
    """Whether it multiplies matrices, as convolutions do too."""
    return _MATRIX_OPERATION.search(operation.type) is not None


def _measured_shares(profile: Profile) -> tuple[float, float, float] | None:
    matrix, memory = (profile.metrics.get(f"profiler/{name}_percent") for name in ("matrix", "memory_bound"))
    if matrix is None or memory is None:
        return None
    return matrix / 100, memory / 100, profile.metrics.get("profiler/compute_tf32_percent", 0.0) / 100


def _shares_by_type(operations: list[Operation]) -> tuple[float, float, float] | None:
    """Shares of matrix work, of all else, which memory bounds at best, and of TF32."""
    total_ms = sum(operation.self_time_ms_per_step for operation in operations)
    if not total_ms:
        return None
    matrix = [operation for operation in operations if is_matrix(operation)]
    matrix_ms = sum(operation.self_time_ms_per_step for operation in matrix)
    tf32_ms = sum(operation.self_time_ms_per_step for operation in matrix if operation.dtype == "tf32")
    return matrix_ms / total_ms, 1 - matrix_ms / total_ms, tf32_ms / total_ms


def _differs(baseline: Profile, candidate: Profile) -> bool:
    return any(
        baseline.entry.get(key, default) != candidate.entry.get(key, default) for key, default in _SETTINGS.items()
    )
