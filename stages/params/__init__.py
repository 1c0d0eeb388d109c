"""`params.yaml` as frozen, typed parameters. Every error is found at once, and nothing here imports TensorFlow."""

from stages.params.loading import examine, load, parse, read
from stages.params.schema import (
    Augment,
    CompareParams,
    DataParams,
    ModelParams,
    Params,
    ProfileParams,
    TrackingParams,
    TrainParams,
    Variant,
)

__all__ = [
    "Augment",
    "CompareParams",
    "DataParams",
    "ModelParams",
    "Params",
    "ProfileParams",
    "TrackingParams",
    "TrainParams",
    "Variant",
    "examine",
    "load",
    "parse",
    "read",
]
