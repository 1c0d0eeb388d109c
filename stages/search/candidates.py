"""The sets of layers that a search times, by type and one by one, and which of them is the best."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from stages.compare.explain.account import slower_layers
from stages.compare.explain.accounts import Accounts
from stages.results.comparison import Ratio
from stages.results.profile import Profile

MOST = 12  # candidates, the variant as it is included
_TYPES, _SINGLE = 4, 3
_MODELS = ("Functional", "Sequential", "Model")  # in a model: without their layers nothing is left in 16 bits

Layers = tuple[str, ...]


def candidates_of(baseline: Profile, variant: Profile, needed: Layers) -> dict[str, Layers]:
    """Sets of layers by name, the variant with what it needs first; at most `MOST`.

    Only layers that compute in 16 bits and lost time there are in them. Groups of all layers of a type come before
    single layers. Sets that are equal are listed once.

    Args:
        baseline, variant: with their accounts and audits.
        needed: paths of the layers without which the variant does not train.
    """
    found: dict[str, Layers] = {"as it is": needed}
    accounts = Accounts.of(baseline, variant)
    if accounts is None or variant.audit is None:
        return found
    in_16_bits = variant.audit.in_16_bits
    types = {path: layer.type for path, layer in in_16_bits.items()}
    matrices = {path for path, layer in in_16_bits.items() if layer.flops and layer.parameters}
    lost = slower_layers(accounts, [path for path in types if types[path] not in _MODELS])
    by_type: dict[str, list[str]] = defaultdict(list)
    for path in lost:
        by_type[types[path]].append(path)
    ordered = sorted(by_type, key=lambda name: -sum(lost[path] for path in by_type[name]))
    for name in ordered[:_TYPES]:
        found[f"all {name}"] = tuple(path for path in types if types[path] == name)
    for name in ordered[:_TYPES]:
        found[f"slower {name}"] = tuple(by_type[name])
    if len(ordered) > 1:
        found[f"all {ordered[0]} and {ordered[1]}"] = found[f"all {ordered[0]}"] + found[f"all {ordered[1]}"]
    found["all that are slower"] = tuple(lost)
    for path in list(lost)[:_SINGLE]:
        found[path] = (path,)
    sets = {name: _joined(needed, layers) for name, layers in found.items()}
    # With all matrix products in float32, it is another variant.
    return _distinct({name: layers for name, layers in sets.items() if not matrices or matrices - set(layers)})


def best_first(found: Mapping[str, Ratio], sizes: Mapping[str, int]) -> list[str]:
    """The names of timed sets, the best one first: of those whose interval reaches the fastest, that of fewest layers.

    It is the rule of one standard error (Breiman, Friedman, Olshen & Stone 1984, Classification and Regression Trees,
    section 3.4.3), with the interval in the place of the error.

    Args:
        found: how fast each set is, over the same baseline.
        sizes: its number of layers.
    """
    fastest = max((over.ratio for over in found.values()), default=0.0)

    def rank(name: str) -> tuple[bool, int, float]:
        is_slower = found[name].high < fastest
        return is_slower, 0 if is_slower else sizes[name], -found[name].ratio

    return sorted(found, key=rank)


def _joined(needed: Layers, layers: Layers) -> Layers:
    return tuple(dict.fromkeys((*needed, *layers)))


def _distinct(found: Mapping[str, Layers]) -> dict[str, Layers]:
    seen: dict[frozenset[str], str] = {}
    for name, layers in found.items():
        seen.setdefault(frozenset(layers), name)
    return {name: found[name] for name in list(seen.values())[:MOST]}
