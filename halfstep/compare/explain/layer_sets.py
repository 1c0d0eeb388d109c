"""Sets of layers that may be faster in float32: all layers of a class first, then single ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from halfstep.compare.explain.account import slower_layers
from halfstep.compare.explain.evidence import Evidence
from halfstep.results.audit import LayerAudit
from halfstep.results.comparison import LayerClassChange, Remedy

MOST_SETS = 4  # of a variant, each of which takes a training to try
_CLASSES = 3
_MODELS = ("Functional", "Sequential", "Model")  # they compute nothing beside their layers


def slower_sets(data: Evidence) -> list[Remedy]:
    """Changes that keep layers in float32 that lose time in 16 bits; at best they take what they took before.

    The classes that lose most come first, with all their layers, then the single layers that lose most.
    """
    layers = _in_16_bits(data)
    if data.by_operation is None or not layers:
        return []
    lost_ms = slower_layers(data.by_operation, layers)
    by_class_ms: dict[str, float] = {}
    for path, layer_ms in lost_ms.items():
        by_class_ms[layers[path].type] = by_class_ms.get(layers[path].type, 0.0) + layer_ms
    classes = sorted(by_class_ms, key=lambda name: -by_class_ms[name])[:_CLASSES]
    sets = [(_of_class(layers, name), by_class_ms[name]) for name in classes]
    sets += [((path,), layer_ms) for path, layer_ms in lost_ms.items()]
    return _changes(data, layers, sets)


def casting_sets(data: Evidence, classes: Iterable[LayerClassChange]) -> list[Remedy]:
    """Changes that keep the classes of layers in float32 whose conversions cost time; at best these are gone.

    Args:
        data: of a candidate.
        classes: what conversions changed by in the layers of a class.
    """
    layers = _in_16_bits(data)
    slower = sorted((change for change in classes if change.delta > 0), key=lambda change: -change.delta)
    return _changes(data, layers, [(_of_class(layers, change.layer_class), change.delta) for change in slower])


def _in_16_bits(data: Evidence) -> Mapping[str, LayerAudit]:
    """The layers of a mixed policy that compute in 16 bits, by path."""
    audit = data.candidate.audit
    if audit is None or not data.policy.startswith("mixed_"):
        return {}
    return {path: layer for path, layer in audit.in_16_bits.items() if layer.type not in _MODELS}


def _of_class(layers: Mapping[str, LayerAudit], name: str) -> tuple[str, ...]:
    return tuple(path for path, layer in layers.items() if layer.type == name)


def _changes(
    data: Evidence, layers: Mapping[str, LayerAudit], sets: Iterable[tuple[tuple[str, ...], float]]
) -> list[Remedy]:
    """The changes of sets of layers, each with the milliseconds a step that it may gain, without equal sets."""
    if data.speedup is None:
        return []
    step_ms = data.speedup.candidate_time_ms
    matrices = {path for path, layer in layers.items() if layer.flops and layer.parameters}
    changes: dict[frozenset[str], Remedy] = {}
    for paths, gain_ms in sets:
        # With all matrix products in float32 it would be another policy.
        if not paths or gain_ms >= step_ms or (matrices and matrices <= set(paths)):
            continue
        name = f"all {layers[paths[0]].type}" if len(paths) > 1 else None
        change = data.changed("float32_layers", paths, step_ms / (step_ms - gain_ms), name)
        changes.setdefault(frozenset(paths), change)
    return list(changes.values())[:MOST_SETS]
