"""The change that would show whether the cause that the traces name is one: layers that compute in float32."""

from __future__ import annotations

import math
from collections.abc import Iterator

from halfstep.compare.case import Case
from halfstep.compare.document import judged
from halfstep.compare.explain.limit import compute_operations
from halfstep.compare.rules.layer_sets import casting_sets, slower_sets
from halfstep.compare.study import load_study, with_margin
from halfstep.params.schema import Params
from halfstep.results.comparison import Remedy
from halfstep.results.confirmation import Intervention
from halfstep.words.text import TRAIN

_LEAST_SHARE = 0.02  # of the step, that is promised: less cannot be told from noise
_LEAST_OF_COST = 0.5  # of what the named kinds cost: less is not the cause by itself
_MOST_OF_16_BIT = 0.5  # of the work: with more of it in float32 it would be another precision


def intervention_of(settings: Params) -> Intervention | None:
    """The change of the largest promise, from what `profile` has written; None where no cause is a set of layers."""
    compared, train = settings.compare, settings.train
    sizes = settings.profile.inference_batch_sizes
    study = load_study(compared.baseline, train.variants, train.seeds, sizes, with_served=False)
    judging = judged(study, with_margin(compared, study))
    found = [change for case in judging.cases if TRAIN not in judging.void for change in _interventions(case)]
    return max(found, key=lambda change: change.promised_ms, default=None)


def _interventions(case: Case) -> Iterator[Intervention]:
    account = case.account
    if account is None or case.speedup is None or not account.is_sound or account.measured.includes_0:
        return
    step_ms, named = case.speedup.candidate_time_ms, {str(kind.kind) for kind in account.named if kind.delta > 0}
    least_ms = max(_LEAST_SHARE * step_ms, _LEAST_OF_COST * account.cost_ms)
    for remedy in _changes(case, named):
        promised_ms = step_ms * (1 - 1 / remedy.at_most) if remedy.at_most else 0.0
        layers = remedy.to if isinstance(remedy.to, tuple) else ()
        if promised_ms >= least_ms and _leaves_16_bit(case, layers):
            yield Intervention(variant=case.variant, layers=layers, what=remedy.layers, promised_ms=promised_ms)


def _changes(case: Case, named: set[str]) -> list[Remedy]:
    casting = [one for one in (case.account and case.account.classes) or () if one.kind == "cast"]
    changes = casting_sets(case, casting) if "cast" in named else []
    return changes + (slower_sets(case) if named - {"cast", "host", "input"} else [])


def _leaves_16_bit(case: Case, layers: tuple[str, ...]) -> bool:
    """Whether most of the work in 16 bits stays there, by what it takes in the baseline."""
    audit = case.candidate.audit
    if audit is None:
        return False
    rows = [row for row in compute_operations(case.before) if row.layer in audit.in_16_bits]
    moved_ms = math.fsum(row.time_ms for row in rows if row.layer in layers)
    return moved_ms <= _MOST_OF_16_BIT * math.fsum(row.time_ms for row in rows)
