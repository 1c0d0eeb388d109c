"""The layers of a model, with their types, sizes and work, and what may cost time or precision."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from halfstep.policies import SIXTEEN_BIT
from halfstep.results.artifact import Document, Record

AUDIT = "audit.json"

FindingCode = Literal[
    "output_in_16_bits", "stays_float32", "casts", "size_not_multiple_of_8", "long_reduction", "small_epsilon"
]


class Finding(Record):
    """Something about a layer that may cost time or precision.

    Attributes:
        is_error: whether it must be mended.
    """

    code: FindingCode
    text: str
    is_error: bool = False


class LayerAudit(Record):
    """A layer.

    Attributes:
        path: as `float32_layers` names it.
        type: name of its class.
        compute_dtype, variable_dtype: of its policy.
        parameters: number of its own weights, without those of the layers inside it.
        flops: 2 × the multiply-adds of its own matrix products and convolutions, in a forward pass of one example;
            None where a size is not known, or the model has no forward pass of its own.
        bytes: at least read and written in this pass: weights, inputs and outputs, once each, in the types of the
            graph; None where a size is not known.
        findings: what may cost time or precision.
    """

    path: str
    type: str
    compute_dtype: str
    variable_dtype: str
    parameters: int
    flops: int | None = None
    bytes: int | None = None
    findings: tuple[Finding, ...] = ()


class Totals(Record):
    """Sums over the layers.

    Attributes:
        flops_by_dtype: of the layers that compute in this type.
        casts: between float32 and 16 bits, those of weights left out.
    """

    parameters: int
    flops: int | None = None
    bytes: int | None = None
    flops_by_dtype: dict[str, int] = Field(default_factory=dict)
    casts: int | None = None


class ModelAudit(Document):
    """All layers of a model under one variant, in the order of the model."""

    VERSION: ClassVar[int] = 1

    layers: tuple[LayerAudit, ...]
    totals: Totals

    @property
    def in_16_bits(self) -> dict[str, LayerAudit]:
        """The layers whose policy computes in 16 bits, by path: the others lose nothing that float32 would mend."""
        return {layer.path: layer for layer in self.layers if layer.compute_dtype in SIXTEEN_BIT}

    @property
    def errors(self) -> list[tuple[str, Finding]]:
        """What must be mended, with the paths of the layers."""
        return [(layer.path, finding) for layer in self.layers for finding in layer.findings if finding.is_error]
