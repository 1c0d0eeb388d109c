"""`python -m halfstep fleet report`: which precision on which machine, from `data/fleet/`. Needs no Ray.

Each machine keeps the verdicts of its own report. Two statements are about all of them:

- "On all of them" is said where each machine's own verdict says so, without a further correction. If it is false, it is
  false on at least one machine, whose own verdict is wrong in at most 5 % of the measurements: an intersection-union
  test (Berger, Technometrics 24, 1982, p. 295). More machines make it harder to say, not easier.
- "On at least one of them" is said where a verdict holds although all verdicts of all machines share an error of 5 %
  (Holm). With each verdict's own error, one of many would sooner or later say so by chance.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from halfstep import files
from halfstep.compare.report.html import flat
from halfstep.compare.text import SPEED_ONLY_NOTE
from halfstep.errors import DataError, HalfstepError
from halfstep.escaping import markdown_text
from halfstep.gallery import results, tables
from halfstep.gallery.merging import by_machine, rows_of
from halfstep.gallery.results import Result
from halfstep.stats.multiple import holm
from halfstep.stats.speedup import CONFIDENCE
from halfstep.terminal import wide_console
from halfstep.text import joined, measure_label

STUDY = "fleet"
REPORT = files.FLEET / "report.md"
_COMMAND = "python -m halfstep fleet profile"


@dataclass(frozen=True)
class _Measured:
    """What a fleet measured, as the tables of the gallery name it."""

    title: str

    def lowers_precision(self, variant: str) -> bool:
        """All candidates are shown."""
        return True


def report() -> None:
    """Writes `data/fleet/report.md` and its picture, and prints a table for each machine.

    Raises:
        HalfstepError: there is no machine, a file cannot be used, or the machines were not measured alike.
    """
    from halfstep.gallery.picture import svg  # takes a second

    all_results = results.read(lambda one: None, files.FLEET)
    if all_results.left_out:
        raise HalfstepError(*(f"{line}; remove it, or run `{_COMMAND}`" for line in all_results.left_out))
    if not all_results.shown:
        raise DataError(f"{files.FLEET} has no machine: run `{_COMMAND}`")
    shown = sorted(all_results.shown, key=lambda one: (one.device, one.machine))
    if lines := list(differences(shown)):
        raise HalfstepError(*lines)
    machines = by_machine(all_results, [STUDY])
    subjects = {STUDY: _Measured(_subject(shown[0]))}
    sentences = [*together(shown), *_notes(shown)]
    files.write_text(REPORT.with_suffix(".svg"), svg(machines, subjects))
    files.write_text(REPORT, _page(shown, subjects[STUDY], sentences))
    console = wide_console()
    for one in shown:
        console.print(_table(one))
    console.print(*map(Text, sentences), sep="\n")
    print(f"{REPORT} has the picture")


def differences(machine_results: Sequence[Result]) -> Iterator[str]:
    """A line for each thing that must be the same on all machines and is not."""
    for name in sorted({name for one in machine_results for name in one.alike or {}}):
        by_value: dict[str, list[str]] = {}
        for one in machine_results:
            by_value.setdefault(json.dumps((one.alike or {}).get(name)), []).append(one.machine)
        if len(by_value) > 1:
            groups = "; ".join(f"{value[:40]} on {', '.join(machines)}" for value, machines in by_value.items())
            yield (
                f"{files.FLEET}: {name} differs between the machines ({groups}): measure them alike with `{_COMMAND}`, "
                "or remove the folders of some"
            )


def together(machine_results: Sequence[Result]) -> Iterator[str]:
    """What all machines say about each candidate, in each measure."""
    names = _names(machine_results)
    rows = {
        (measure, name): {one.machine: one.comparison.candidates[name] for one in machine_results}
        for name, candidate in machine_results[0].comparison.candidates.items()
        for measure in candidate.verdicts
    }
    adjusted = holm(
        {
            (key, machine): test.p
            for key, row in rows.items()
            for machine, candidate in row.items()
            if (test := (candidate.tests or {}).get(key[0])) is not None
        }
    )
    for (measure, name), row in rows.items():
        verdicts: dict[str, list[str]] = {}
        for machine, candidate in row.items():
            verdicts.setdefault(candidate.verdicts[measure], []).append(machine)
        sentence = f"{name}, {measure_label(measure)}: "
        if len(machine_results) == 1:
            sentence += f"{next(iter(verdicts))} on the one machine that was measured."
        elif len(verdicts) == 1 and "inconclusive" not in verdicts:
            sentence += f"{next(iter(verdicts))} on all of them, by each machine's own verdict."
        else:
            parts = [f"{verdict} on {joined([names[one] for one in some])}" for verdict, some in verdicts.items()]
            sentence += f"{'; '.join(parts)}."
            if "adopt" in verdicts and adjusted:
                held = [
                    names[machine]
                    for machine in verdicts["adopt"]
                    if adjusted.get(((measure, name), machine), 1.0) <= 1 - CONFIDENCE
                ]
                where = f"shown on at least one of them: {joined(held)}" if held else "not shown on any of them"
                sentence += f" Corrected for the {len(adjusted)} verdicts of all machines, adopt is {where}."
        yield sentence


def _names(machine_results: Sequence[Result]) -> dict[str, str]:
    """The device of each machine, and the machine's identifier where several machines have the same device."""
    devices = [one.device for one in machine_results]
    return {
        one.machine: one.device if devices.count(one.device) == 1 else f"{one.device} ({one.machine})"
        for one in machine_results
    }


def _notes(machine_results: Sequence[Result]) -> Iterator[str]:
    if len(machine_results) == 1:
        return
    if machine_results[0].comparison.speed_only:
        yield f"Note: {SPEED_ONLY_NOTE}"
        yield (
            "Note: verdicts on speed only do not share an error: each is wrong in at most 2.5 % of the measurements, "
            "and of many verdicts one or more is wrong more often. So nothing is said of at least one of the machines."
        )
        return
    yield (
        "Note: on all of them is said where each machine's own verdict says so. One verdict that does not agree is "
        "enough to refute it, so it needs no further correction."
    )
    yield "Note: on at least one of them is corrected for all verdicts of all machines by Holm's method."


def _subject(one: Result) -> str:
    setup = one.comparison.setup
    return setup.task.name if setup else "the task"


def _table(one: Result) -> Table:
    table = Table(title=Text(f"{one.device}, machine {one.machine}", style="bold"), title_justify="left")
    for column in tables.HEAD[1:]:
        table.add_column(column, overflow="fold")
    for row in rows_of([one]):
        table.add_row(*map(Text, tables.cells(row)))
    return table


def _page(machine_results: Sequence[Result], subject: _Measured, sentences: Sequence[str]) -> str:
    lines = ["# Which precision on which machine?", "", *(f"- {markdown_text(text)}" for text in sentences), ""]
    lines += [f"![Speed-up of training on each machine, with its interval]({REPORT.with_suffix('.svg').name})", ""]
    unlike, names = _unlike(machine_results), _names(machine_results)
    for one in machine_results:
        about = [*results.described([one]), *(f"{name}: {text}" for name, text in unlike[one.machine].items())]
        lines += [f"## {markdown_text(names[one.machine])}", "", f"{markdown_text('; '.join(about))}.", ""]
        lines += [*tables.table({STUDY: [one]}, {STUDY: subject}), ""]
    return "\n".join(lines)


def _unlike(machine_results: Sequence[Result]) -> Mapping[str, dict[str, str]]:
    """What distinguishes each machine from the others: settings and hardware of its description, by name."""
    described = {one.machine: dict(flat(one.comparison.environment)) for one in machine_results}
    keys = dict.fromkeys(key for each in described.values() for key in each if key not in ("sha256", "device"))
    differing = [key for key in keys if len({each.get(key) for each in described.values()}) > 1]
    return {machine: {key: each[key] for key in differing if key in each} for machine, each in described.items()}
