"""What the processor can gain from 16 bit, by the machine's fingerprint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

# Peak rate of dense 16-bit matrix products over float32 arithmetic by major compute capability, published TFLOPS.
_GPU_MATRIX_RATIOS = {
    7: 125 / 15.7,  # V100; T4 65 / 8.1
    8: 312 / 19.5,  # A100
    9: 989.4 / 66.9,  # H100 SXM
}
_OVER_TF32 = 2.0  # A100 312 / 156, H100 989.4 / 494.7
_DEFAULT_MAJOR = 8  # a GPU that is not listed counts as an A100
_TENSOR_CORES_FROM = {"float16": 7.0, "bfloat16": 8.0}  # compute capability
# Operations a cycle and core over those of AVX-512 in float32, as published: 1,024 with AMX_BF16 against 64.
_CPU_MATRIX_RATIOS = {
    "bfloat16": {"amx_bf16": 16.0, "avx512_bf16": 2.0},
    "float16": {"amx_fp16": 16.0, "avx512_fp16": 2.0},
}


@dataclass(frozen=True)
class PeakRatios:
    """How much faster 16 bit makes each kind of work at most; other work does not become faster.

    Attributes:
        matrix: matrix products that run in float32.
        matrix_from_tf32: matrix products that run in TF32.
        memory: memory-bound work, which moves half the bytes.
    """

    matrix: float
    matrix_from_tf32: float
    memory: float = 2.0


def peak_ratios(policy: str, environment: dict[str, Any], *, on_gpu: bool) -> PeakRatios | None:
    """What a policy can bring on this machine; None if the CPU has no instructions for the policy's type."""
    if on_gpu:
        capability = compute_capability(environment)
        if capability is not None and capability < tensor_cores_from(policy):
            return PeakRatios(matrix=1.0, matrix_from_tf32=1.0)
        matrix = _GPU_MATRIX_RATIOS.get(int(capability or _DEFAULT_MAJOR), _GPU_MATRIX_RATIOS[_DEFAULT_MAJOR])
        return PeakRatios(matrix, _OVER_TF32)
    known = instruction_sets(environment)
    ratios = [ratio for name, ratio in _CPU_MATRIX_RATIOS[_dtype(policy)].items() if name in known]
    return PeakRatios(max(ratios), max(ratios)) if ratios else None


def has_16bit_matrix_work(policy: str, environment: dict[str, Any], *, on_gpu: bool) -> bool:
    """Whether matrix products run faster in the policy's type on this machine."""
    found = peak_ratios(policy, environment, on_gpu=on_gpu)
    return found is not None and found.matrix > 1


def tensor_cores_from(policy: str) -> float:
    """Compute capability from which tensor cores support the policy's type."""
    return _TENSOR_CORES_FROM[_dtype(policy)]


def compute_capability(environment: dict[str, Any]) -> float | None:
    """Compute capability of the first GPU, such as 8.0; None without a GPU, or if the driver does not report it."""
    for gpu in environment["gpus"][:1]:
        if "compute_capability" in gpu:
            return float(gpu["compute_capability"])
    return None


def instruction_sets(environment: dict[str, Any]) -> set[str]:
    """Instruction sets of the CPU that matter for 16 bit; empty if unknown."""
    return set(environment["cpu"]["instruction_sets"])


def _dtype(policy: str) -> str:
    return "bfloat16" if "bfloat16" in policy else "float16"
