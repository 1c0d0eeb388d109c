"""`params.yaml` as frozen, typed parameters. Reports all errors at once, and does not import TensorFlow."""

from halfstep.params.loading import examine, load, parse
from halfstep.params.margin import quality_margin_for
from halfstep.params.reading import read
from halfstep.params.schema import (
    Augment,
    CompareParams,
    DataParams,
    FleetParams,
    ModelParams,
    Params,
    ProfileParams,
    ServeParams,
    TaskParams,
    TrackingParams,
    TrainParams,
    Variant,
)

__all__ = [
    "Augment",
    "CompareParams",
    "DataParams",
    "FleetParams",
    "ModelParams",
    "Params",
    "ProfileParams",
    "ServeParams",
    "TaskParams",
    "TrackingParams",
    "TrainParams",
    "Variant",
    "examine",
    "load",
    "parse",
    "quality_margin_for",
    "read",
]
