"""What is timed: one file of each format and graph."""

from __future__ import annotations

from halfstep.params.schema import Params
from halfstep.results.serving import Export
from halfstep.serve.records import Exported
from halfstep.serve.stage import timed_graphs

BASELINE, OTHER = "float32", "mixed_bfloat16"


def exported(variant: str, graph: str, *exports: Export) -> dict[tuple[str, int], Exported]:
    litert = Export(variant=variant, seed=0, format="litert", file="a")
    return {(variant, 0): Exported(exports=(litert, *exports), graph=graph)}


def arms_of(trainings: dict[tuple[str, int], Exported]) -> dict[str, Export]:
    return dict(timed_graphs(Params(), trainings).values())


def test_variants_with_the_graph_of_the_baseline_are_timed_by_it() -> None:
    arms = arms_of(exported(BASELINE, "a") | exported(OTHER, "a"))
    assert {name: item.variant for name, item in arms.items()} == {"litert": BASELINE}


def test_another_graph_is_timed_apart() -> None:
    arms = arms_of(exported(BASELINE, "a") | exported(OTHER, "b"))
    assert {name: item.variant for name, item in arms.items()} == {"litert": BASELINE, "litert.mixed_bfloat16": OTHER}


def test_format_that_refuses_the_model_is_not_timed() -> None:
    refused = Export(variant=BASELINE, seed=0, format="onnx", refusal="ONNX Runtime: no")
    assert list(arms_of(exported(BASELINE, "a", refused))) == ["litert"]
