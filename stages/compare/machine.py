"""What the processor could gain from 16 bit, from what the machine's fingerprint says of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

# Dense 16-bit matrix products over float32 arithmetic by major compute capability, both in TFLOPS as published.
_GPU_MATRIX_RATIOS = {
    7: 125 / 15.7,  # V100; T4 65 / 8.1
    8: 312 / 19.5,  # A100
    9: 989.4 / 66.9,  # H100 SXM
}
_OVER_TF32 = 2.0  # A100 312 / 156, H100 989.4 / 494.7
_UNLISTED = 8  # a GPU that is not listed counts as an A100
_TENSOR_CORES_FROM = {"float16": 7.0, "bfloat16": 8.0}  # compute capability
# Operations a cycle and core over those of AVX-512 in float32, as published: 1,024 with AMX_BF16 against 64.
_CPU_MATRIX_RATIOS = {
    "bfloat16": {"amx_bf16": 16.0, "avx512_bf16": 2.0},
    "float16": {"amx_fp16": 16.0, "avx512_fp16": 2.0},
}


@dataclass(frozen=True)
class Ceilings:
    """How many times faster 16 bit can make work, at most. What is neither matrix work nor memory-bound gains nothing.

    `matrix_from_tf32` is over matrix products that already run in TF32, `memory` is what half the bytes bring.
    """

    matrix: float
    matrix_from_tf32: float
    memory: float = 2.0


def ceilings(policy: str, device_type: str, environment: dict[str, Any]) -> Ceilings | None:
    """What a policy can bring on this machine; None where its processor does not compute the policy's type."""
    if device_type == "GPU":
        capability = compute_capability(environment)
        if capability is not None and capability < tensor_cores_from(policy):
            return Ceilings(matrix=1.0, matrix_from_tf32=1.0)
        matrix = _GPU_MATRIX_RATIOS.get(int(capability or _UNLISTED), _GPU_MATRIX_RATIOS[_UNLISTED])
        return Ceilings(matrix, _OVER_TF32)
    known = instruction_sets(environment)
    ratios = [ratio for name, ratio in _CPU_MATRIX_RATIOS[_dtype(policy)].items() if name in known]
    return Ceilings(max(ratios), max(ratios)) if ratios else None


def has_16bit_matrix_work(policy: str, device_type: str, environment: dict[str, Any]) -> bool:
    """Whether matrix products run faster in the policy's type here."""
    found = ceilings(policy, device_type, environment)
    return found is not None and found.matrix > 1


def tensor_cores_from(policy: str) -> float:
    """Compute capability from which tensor cores take the policy's type."""
    return _TENSOR_CORES_FROM[_dtype(policy)]


def compute_capability(environment: dict[str, Any]) -> float | None:
    """Compute capability of the first GPU, such as 8.0; None where the fingerprint does not hold it."""
    gpus = environment.get("gpus") or [{}]
    stated = gpus[0].get("compute_capability")
    return None if stated is None else float(stated)


def instruction_sets(environment: dict[str, Any]) -> set[str]:
    """Instruction sets of the CPU that decide about 16 bit; empty where they are not known."""
    return set(environment.get("cpu", {}).get("instruction_sets", ()))


def _dtype(policy: str) -> str:
    return "bfloat16" if "bfloat16" in policy else "float16"
