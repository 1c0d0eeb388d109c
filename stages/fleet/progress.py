"""Progress of the jobs: one line each, in place on a terminal; elsewhere a line at each change."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator, Sequence
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.table import Table

from stages.errors import one_line
from stages.fleet.cluster import Job

_EPOCH = re.compile(r"epoch (?P<epoch>\d+/\d+): (?P<logs>.*)")
_NUMBER = re.compile(r"(?P<name>\w+) (?P<value>[-+.\de]+|nan|inf)(?:,|$)")
_SHOWN = ("epoch ", "test ", "failed", "resumed")  # how the lines of a training begin that are shown
_LONGEST = 160


class Progress:
    """Shows what `cluster.run` reports of its jobs."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._states = {job.name: ("", "waiting") for job in jobs}
        self._started_s = time.monotonic()
        self._console = Console(file=sys.stdout, highlight=False, markup=False)
        self._live = Live(console=self._console, auto_refresh=False) if self._console.is_terminal else None

    def __enter__(self) -> Progress:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._live:
            self._live.stop()

    def on_event(self, job: Job, kind: str, text: str) -> None:
        """Shows one event, as `cluster.run` passes it."""
        host, state = self._states[job.name]
        if kind == "started":
            self._set(job.name, text, "started")
        elif kind == "line":
            if shown := shown_line(job.name, text):
                self._set(job.name, host, shown)
        elif kind == "retry":
            self._set(job.name, host, text)
        elif kind == "ended":
            self._set(job.name, host, f"failed: {text}" if text else f"{state}; pushed")

    def _set(self, name: str, host: str, state: str) -> None:
        self._states[name] = (host, one_line(state, _LONGEST))
        if self._live:
            self._live.update(self._table(), refresh=True)
        else:
            where = f" on {host}" if host else ""
            print(f"{time.monotonic() - self._started_s:6.1f} s  {name}{where}: {self._states[name][1]}", flush=True)

    def _table(self) -> Table:
        table = Table.grid(padding=(0, 2))
        for name, (host, state) in self._states.items():
            table.add_row(name, host, state)
        return table


def shown_line(name: str, line: str) -> str | None:
    """What a line of a training's output shows: the epoch with its score, or how the training ended; None: nothing."""
    _, found, text = line.partition(f"{name}: ")
    if not found or not text.startswith(_SHOWN):
        return None
    match = _EPOCH.match(text)
    if match is None:
        return text
    numbers = {entry["name"]: entry["value"] for entry in _NUMBER.finditer(match["logs"])}
    return ", ".join([f"epoch {match['epoch']}", *_score(numbers)])


def _score(numbers: dict[str, str]) -> Iterator[str]:
    """The validation's score, or else its loss, or the loss."""
    scores = [name for name in numbers if name.startswith("val_") and name != "val_loss"]
    for name in [*scores, *(name for name in ("val_loss", "loss") if name in numbers)][:1]:
        yield f"{name} {numbers[name]}"
