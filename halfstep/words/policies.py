"""The precisions, and the dtype policies of Keras that compute in them: the one table of what depends on a precision.

A new precision is a `Precision`, a row in `POLICIES`, and what only it has: the spelling of its kernels
(`halfstep.profile.trace.kernels`), and rates of GPUs other than those of 16 bit (`halfstep.compare.explain.hardware`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Precision:
    """A floating-point type, and the hardware that multiplies matrices in it.

    Attributes:
        name: as Keras, TensorFlow and NumPy spell it.
        bits: size of a number.
        fraction_bits: stored bits of the fraction; neighbouring numbers differ by `2**-fraction_bits` of their size.
        tensor_cores_from: compute capability of the first GPUs whose tensor cores multiply it; None for none.
        arithmetic_ratios: rate over float32 of GPUs without such tensor cores, by compute capability; 1 elsewhere
            (CUDA C++ Programming Guide, throughput of native arithmetic instructions).
        cpu_ratios: operations a cycle and core over those of AVX-512 in float32, by instruction set, as published:
            1,024 with AMX_BF16 against 64. On ARM, those of an instruction: BFMMLA has 16 multiplications for 4 of FMLA
            in float32, and FMLA in float16 has 8.
    """

    name: str
    bits: int
    fraction_bits: int
    tensor_cores_from: float | None = None
    arithmetic_ratios: Mapping[float, float] = field(default_factory=dict)
    cpu_ratios: Mapping[str, float] = field(default_factory=dict)

    @property
    def spacing(self) -> float:
        """The difference of neighbouring numbers near 1; rounding changes a number by half of it at most."""
        return 2.0**-self.fraction_bits


@dataclass(frozen=True)
class DTypePolicy:
    """What Keras computes and keeps variables in; `scales_loss` where gradients would underflow otherwise."""

    name: str
    compute: Precision
    variables: Precision
    scales_loss: bool = False


FLOAT32 = Precision("float32", bits=32, fraction_bits=23)
FLOAT16 = Precision(
    "float16",
    bits=16,
    fraction_bits=10,
    tensor_cores_from=7.0,
    arithmetic_ratios={5.3: 2.0, 6.0: 2.0, 6.2: 2.0},
    cpu_ratios={"amx_fp16": 16.0, "avx512_fp16": 2.0, "asimdhp": 2.0},
)
BFLOAT16 = Precision(
    "bfloat16",
    bits=16,
    fraction_bits=7,
    tensor_cores_from=8.0,
    cpu_ratios={"amx_bf16": 16.0, "avx512_bf16": 2.0, "bf16": 4.0},
)
PRECISIONS = {precision.name: precision for precision in (FLOAT32, FLOAT16, BFLOAT16)}
SIXTEEN_BIT = frozenset(precision.name for precision in PRECISIONS.values() if precision.bits == 16)
POLICIES = {
    policy.name: policy
    for policy in (
        DTypePolicy("float32", FLOAT32, FLOAT32),
        DTypePolicy("mixed_float16", FLOAT16, FLOAT32, scales_loss=True),
        DTypePolicy("mixed_bfloat16", BFLOAT16, FLOAT32),
        DTypePolicy("float16", FLOAT16, FLOAT16),
        DTypePolicy("bfloat16", BFLOAT16, BFLOAT16),
    )
}


def short_name(variant: str, variants: Collection[str]) -> str:
    """A variant's name without `mixed_`, where no other one has that name."""
    short = variant.removeprefix("mixed_")
    return variant if short in variants else short
