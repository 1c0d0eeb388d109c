"""Progress of the jobs: one line each, in place on a terminal; elsewhere a line at each change."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.table import Table

from stages.errors import one_line
from stages.fleet.cluster import Job
from stages.telling import told

_LONGEST = 160


class JobProgress:
    """Shows what `running.run` reports of its jobs."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._states = {job.name: ("", "waiting") for job in jobs}
        self._started_s = time.monotonic()
        self._console = Console(file=sys.stdout, highlight=False, markup=False)
        self._live = Live(console=self._console, auto_refresh=False) if self._console.is_terminal else None

    def __enter__(self) -> JobProgress:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._live:
            self._live.stop()

    def on_event(self, job: Job, kind: str, text: str) -> None:
        """Shows one event, as `running.run` passes it."""
        host, state = self._states[job.name]
        if kind == "started":
            self._set(job.name, text, "started")
        elif kind == "line":
            if shown := told(text):
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
