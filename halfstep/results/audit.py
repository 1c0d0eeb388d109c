"""The layers of a model, with what decides whether one is worth keeping in float32."""

from __future__ import annotations

from typing import Any, ClassVar

from halfstep.results.artifact import Document, Record
from halfstep.system.records import model_validator
from halfstep.words.policies import SIXTEEN_BIT

AUDIT = "audit.json"


class LayerAudit(Record):
    """A layer.

    Attributes:
        path: as `float32_layers` names it.
        type: name of its class.
        compute_dtype: of its policy.
        multiplies: whether it has matrix products or convolutions with weights of its own.
    """

    path: str
    type: str
    compute_dtype: str
    multiplies: bool

    @model_validator(mode="before")
    @classmethod
    def _of_earlier_releases(cls, content: Any) -> Any:
        """They counted the work and the weights."""
        if isinstance(content, dict) and "parameters" in content:
            names = {name: content.get(name) for name in ("path", "type", "compute_dtype")}
            return {**names, "multiplies": bool(content.get("flops") and content["parameters"])}
        return content


class ModelAudit(Document):
    """All layers of a model under one variant, in the order of the model."""

    VERSION: ClassVar[int] = 1

    layers: tuple[LayerAudit, ...]

    @model_validator(mode="before")
    @classmethod
    def _of_earlier_releases(cls, content: Any) -> Any:
        return {"layers": content["layers"]} if isinstance(content, dict) and "totals" in content else content

    @property
    def in_16_bits(self) -> dict[str, LayerAudit]:
        """The layers whose policy computes in 16 bits, by path: the others lose nothing that float32 would mend."""
        return {layer.path: layer for layer in self.layers if layer.compute_dtype in SIXTEEN_BIT}
