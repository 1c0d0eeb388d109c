"""What the processor can gain from 16 bit, by the machine's fingerprint.

Matrix products become faster by the ratio of the peak rates in the makers' data sheets at most. Rates are dense and
with float32 accumulation, which TensorFlow uses for float16. A GPU whose model is not in the table has no ratio: models
of one compute capability differ by a factor of 8. Memory-bound work is assumed to become faster by the ratio of its
traffic, 2, because it moves half the bytes. That is an assumption: no data sheet bounds it, and activations that fit a
cache only in 16 bit gain more.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from stages.policies import Precision

MEMORY_TRAFFIC_RATIO = 2.0


@dataclass(frozen=True)
class _Rates:
    """Peak rates of a GPU model in TFLOPS; None without tensor cores, or without TF32."""

    float32: float
    float16: float
    tf32: float | None = None
    tensor_cores: bool = True


# By the name that the driver reports, the first match counts. The rates of one model stand for its family where the
# ratios are those of the architecture.
_GPU_MODELS: tuple[tuple[str, _Rates], ...] = (
    (r"P100", _Rates(10.6, 21.2, tensor_cores=False)),  # Tesla P100 data sheet, SXM2
    (r"V100", _Rates(15.7, 125)),  # V100 data sheet, SXM2
    (r"\bT4\b", _Rates(8.1, 65)),  # T4 data sheet
    (r"GTX 16\d0", _Rates(5.4, 10.8, tensor_cores=False)),  # GeForce GTX 1660 Ti: float16 at twice the rate of float32
    (r"TITAN RTX|Quadro RTX [34568]000", _Rates(16.3, 130.5)),  # Turing whitepaper, Quadro RTX 6000
    (
        r"GeForce RTX 20[678]0",
        _Rates(13.4, 53.8),
    ),  # Turing whitepaper, RTX 2080 Ti: half rate into float32
    (r"\bA[18]00\b", _Rates(19.5, 312, 156)),  # A100 data sheet
    (r"\bA30\b", _Rates(10.3, 165, 82)),  # A30 data sheet
    (r"\bA10\b", _Rates(31.2, 125, 62.5)),  # A10 data sheet
    (r"\bA10G\b", _Rates(35, 70, 35)),  # A10G data sheet
    (r"\bA(?:2|16|40)\b|RTX A\d{3,4}", _Rates(37.4, 149.7, 74.8)),  # A40 data sheet
    (r"GeForce RTX (?:30[5-9]0|2050)", _Rates(29.8, 59.5, 29.8)),  # GA102 whitepaper, RTX 3080
    (r"\bL4\b", _Rates(30.3, 121, 60)),  # L4 data sheet, half of the rates with sparsity
    (r"\bL40\b", _Rates(90.5, 181.05, 90.5)),  # L40 data sheet
    (r"\bL40S\b|RTX \d{4} Ada", _Rates(91.6, 362.05, 183)),  # L40S data sheet
    (r"GeForce RTX 40[5-9]0", _Rates(82.6, 165.2, 82.6)),  # Ada whitepaper, RTX 4090
    (r"H[18]00|H200", _Rates(66.9, 989.4, 494.7)),  # H100 data sheet, SXM; H200 has the same rates
    (r"\bG?B200\b", _Rates(75, 2250, 1125)),  # HGX B200 data sheet, half of the rates with sparsity
    (r"GeForce RTX 50[5-9]0", _Rates(104.8, 209.5, 104.8)),  # RTX Blackwell whitepaper, RTX 5090
)
_SOME_WITHOUT = 7.5  # the compute capability of models with and without tensor cores


@dataclass(frozen=True)
class PeakRatios:
    """How much faster 16 bit makes each kind of work at most; other work does not become faster.

    Attributes:
        matrix: matrix products that run in float32.
        matrix_from_tf32: matrix products that run in TF32.
        memory: memory-bound work, by assumption.
    """

    matrix: float
    matrix_from_tf32: float
    memory: float = MEMORY_TRAFFIC_RATIO


def peak_ratios(precision: Precision, environment: dict[str, Any], *, on_gpu: bool) -> PeakRatios | None:
    """What a precision can bring on this machine; None if unknown, or if the CPU has no instructions for it."""
    if on_gpu:
        return _gpu_ratios(precision, environment)
    known = instruction_sets(environment)
    ratios = [ratio for name, ratio in precision.cpu_ratios.items() if name in known]
    return PeakRatios(max(ratios), max(ratios)) if ratios else None


def _gpu_ratios(precision: Precision, environment: dict[str, Any]) -> PeakRatios | None:
    capability, rates = compute_capability(environment), _rates(environment)
    if capability is not None and capability < tensor_cores_from(precision):
        ratio = precision.arithmetic_ratios.get(capability, 1.0)
        return PeakRatios(ratio, ratio)
    if rates is None:
        return None
    return PeakRatios(rates.float16 / rates.float32, rates.float16 / (rates.tf32 or rates.float32))


def has_16bit_matrix_work(precision: Precision, environment: dict[str, Any], *, on_gpu: bool) -> bool | None:
    """Whether the processor has hardware for matrix products in a precision; None if unknown."""
    if not on_gpu:
        return peak_ratios(precision, environment, on_gpu=False) is not None
    capability, rates = compute_capability(environment), _rates(environment)
    if capability is not None and capability < tensor_cores_from(precision):
        return False
    if rates is not None:
        return rates.tensor_cores
    return None if capability in (None, _SOME_WITHOUT) else True


def tensor_cores_from(precision: Precision) -> float:
    """Compute capability from which tensor cores support a precision; infinite if none do."""
    return precision.tensor_cores_from or math.inf


def compute_capability(environment: dict[str, Any]) -> float | None:
    """Compute capability of the first GPU, such as 8.0; None without a GPU, or if the driver does not report it."""
    for gpu in environment["gpus"][:1]:
        if "compute_capability" in gpu:
            return float(gpu["compute_capability"])
    return None


def gpu_name(environment: dict[str, Any]) -> str:
    """Name of the first GPU as the driver reports it; empty without one."""
    return next((str(gpu.get("name", "")) for gpu in environment["gpus"]), "")


def instruction_sets(environment: dict[str, Any]) -> set[str]:
    """Instruction sets of the CPU that matter for 16 bit; empty if unknown."""
    return set(environment["cpu"]["instruction_sets"])


def _rates(environment: dict[str, Any]) -> _Rates | None:
    name = gpu_name(environment)
    return next((rates for pattern, rates in _GPU_MODELS if re.search(pattern, name)), None)
