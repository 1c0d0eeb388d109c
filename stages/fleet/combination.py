"""What the verdicts of several machines say together.

Each machine keeps the verdicts of its own report. Two statements are about all of them:

- "On all of them" is said where each machine's own verdict says so, without a further correction. If it is false, it is
  false on at least one machine, whose own verdict is wrong in at most 5 % of the measurements: an intersection-union
  test (Berger, Technometrics 24, 1982, p. 295). More machines make it harder to say, not easier.
- "On at least one of them" is said where a verdict holds although all verdicts of all machines share an error of 5 %
  (Holm). With each verdict's own error, one of many would sooner or later say so by chance.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar, Literal

from stages import files
from stages.fleet.machines import Machine
from stages.results.artifact import Document, Record
from stages.results.comparison import Candidate, Quality, Ratio, Verdict, VerdictTest
from stages.stats.multiple import holm
from stages.stats.speedup import CONFIDENCE
from stages.text import TRAIN

REPORT = files.FLEET / "report.json"

Key = tuple[str, str, str]  # machine, candidate, measure


class MachineResult(Record):
    """A machine; `environment` describes it as in `data/environment.json`."""

    digest: str
    device: str
    host: str
    environment: dict[str, object]


class RowResult(Record):
    """A candidate on a machine, in a measure.

    Attributes:
        machine: digest of the machine.
        quality: that the verdict asks for: of two trainings for training, of the same weights for inference.
        verdict: of the machine's own report.
        p: one-sided p-value of `adopt`; None for speed only, and where nothing was measured.
        p_fleet: the same, adjusted for all verdicts of all machines (Holm 1979).
    """

    machine: str
    candidate: str
    measure: str
    speedup: Ratio | None = None
    quality: Quality | None = None
    verdict: Verdict
    p: float | None = None
    p_fleet: float | None = None


class TogetherResult(Record):
    """What all machines say about a candidate, in a measure.

    Attributes:
        verdicts: digests of the machines by verdict.
        on_all: the verdict of every machine, unless they differ or it is `inconclusive`.
        shown_on: machines on which `adopt` holds although all verdicts of all machines share an error of 5 %. None for
            speed only, whose verdicts have no p-values.
    """

    candidate: str
    measure: str
    verdicts: dict[Verdict, tuple[str, ...]]
    on_all: Verdict | None = None
    shown_on: tuple[str, ...] | None = None


class FleetReport(Document):
    """`data/fleet/report.json`. `tests` is the number of verdicts that share an error in `p_fleet`."""

    VERSION: ClassVar[int] = 1

    commit: str
    changes: str | None = None
    baseline: str
    min_speedup: float
    speed_only: Literal[True] | None = None
    tests: int
    machines: tuple[MachineResult, ...]
    rows: tuple[RowResult, ...]
    together: tuple[TogetherResult, ...]


def combine(machines: Sequence[Machine]) -> FleetReport:
    """The report on machines that were measured alike, at least one."""
    first, origin = machines[0].comparison, machines[0].provenance
    p_values = {key: test.p for key, candidate in _candidates(machines) if (test := _test(candidate, key)) is not None}
    adjusted = holm(p_values)
    rows = [_row(key, candidate, adjusted) for key, candidate in _candidates(machines)]
    return FleetReport(
        commit=origin.commit,
        changes=origin.changes,
        baseline=first.baseline,
        min_speedup=first.min_speedup,
        speed_only=first.speed_only,
        tests=len(p_values),
        machines=tuple(
            MachineResult(
                digest=machine.digest,
                device=machine.device,
                host=machine.provenance.host,
                environment=machine.comparison.environment,
            )
            for machine in machines
        ),
        rows=tuple(rows),
        together=tuple(_together(rows, speed_only=bool(first.speed_only))),
    )


def _candidates(machines: Sequence[Machine]) -> Iterator[tuple[Key, Candidate]]:
    for machine in machines:
        for name, candidate in machine.comparison.candidates.items():
            for measure in candidate.verdicts:
                yield (machine.digest, name, measure), candidate


def _test(candidate: Candidate, key: Key) -> VerdictTest | None:
    return (candidate.tests or {}).get(key[2])


def _row(key: Key, candidate: Candidate, adjusted: dict[Key, float]) -> RowResult:
    machine, name, measure = key
    speedup, test = (candidate.speedup or {}).get(measure), _test(candidate, key)
    return RowResult(
        machine=machine,
        candidate=name,
        measure=measure,
        speedup=None if speedup is None else Ratio(value=speedup.value, low=speedup.low, high=speedup.high),
        quality=candidate.quality if measure == TRAIN else candidate.quality_same_weights,
        verdict=candidate.verdicts[measure],
        p=None if test is None else test.p,
        p_fleet=adjusted.get(key),
    )


def _together(rows: Sequence[RowResult], *, speed_only: bool) -> Iterator[TogetherResult]:
    for candidate, measure in dict.fromkeys((row.candidate, row.measure) for row in rows):
        found = [row for row in rows if (row.candidate, row.measure) == (candidate, measure)]
        verdicts: dict[Verdict, tuple[str, ...]] = {}
        for row in found:
            verdicts[row.verdict] = (*verdicts.get(row.verdict, ()), row.machine)
        common = found[0].verdict if len(verdicts) == 1 and "inconclusive" not in verdicts else None
        yield TogetherResult(
            candidate=candidate,
            measure=measure,
            verdicts=verdicts,
            on_all=common,
            shown_on=None if speed_only else tuple(row.machine for row in found if _holds_among_all(row)),
        )


def _holds_among_all(row: RowResult) -> bool:
    return row.verdict == "adopt" and row.p_fleet is not None and row.p_fleet <= 1 - CONFIDENCE
