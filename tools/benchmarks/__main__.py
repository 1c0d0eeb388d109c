"""What a release is checked by: `python -m tools.benchmarks truth|coverage|causes|speed|sealing --out FILE`.

    truth       equal variants, steps that are 5 % longer, and planted layers: are they found, and nothing else?
    coverage    simulated measurements: how often do intervals hold the truth?
    causes      simulated accounts: how often do they name what changed, and something else?
    sealing     what it costs that a process leaves the user's files as they were
    speed       the default run and ResNet-20 at 64 px: how long, how wide, and beside another commit?

Each measurement adds a line of JSON to FILE at once, and a rerun continues after the lines that are there. Nothing is
asserted; a table is printed.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from halfstep.machine.fingerprint import fingerprint
from tools.benchmarks import causes, coverage, sealing, speed, truth
from tools.benchmarks.checkout import ROOT, resolved

Row = dict[str, Any]
Measurements = Iterable[tuple[str, Callable[[], Row]]]


def measured(out: Path, wanted: Measurements, jobs: int = 1) -> list[Row]:
    """Makes the measurements that a file lacks, and adds them to it.

    Args:
        out: the file.
        wanted: functions by the names of their measurements.
        jobs: measurements that run at the same time, each in a process of its own.

    Returns:
        All rows of these names, which are their key `name`.
    """
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()] if out.exists() else []
    rows_by_name = {row["name"]: row for row in rows}
    missing = {name: measure for name, measure in wanted if name not in rows_by_name}
    with ProcessPoolExecutor(jobs) as pool:
        results = pool.map(_called, missing.values()) if jobs > 1 else map(_called, missing.values())
        for name, row in zip(missing, results, strict=True):
            rows_by_name[name] = {"name": name, **row}
            with out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(rows_by_name[name]) + "\n")
            print(f"{name}: done", flush=True)
    return [rows_by_name[name] for name, _ in wanted]


def _called(measure: Callable[[], Row]) -> Row:
    return measure()


def main() -> None:
    """Measures what is missing and prints the table."""
    parser = argparse.ArgumentParser(prog="python -m tools.benchmarks", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("benchmark", choices=("truth", "coverage", "causes", "sealing", "speed"))
    parser.add_argument("--out", type=Path, required=True, help="file for one line of JSON per measurement")
    parser.add_argument("--times", type=int, help="measurements of each kind")
    parser.add_argument("--only", default="", help="those whose name contains this")
    parser.add_argument("--load", type=float, default=0.0, help="of truth: cores that another program keeps busy")
    parser.add_argument("--against", metavar="COMMIT", help="of speed: another commit, in turns with this one")
    arguments = parser.parse_args()
    out, times, jobs = arguments.out.resolve(), arguments.times, 1
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    if arguments.benchmark == "truth":
        wanted, report = truth.measurements(times or 20, arguments.load), truth.report
    elif arguments.benchmark == "coverage":
        wanted, report, jobs = coverage.measurements(times or 2000), coverage.report, os.cpu_count() or 1
    elif arguments.benchmark == "causes":
        wanted, report, jobs = causes.measurements(times or 400), causes.report, os.cpu_count() or 1
    elif arguments.benchmark == "sealing":
        wanted, report = sealing.measurements(times or 24), sealing.report
    else:
        commits = [resolved(name) for name in filter(None, (arguments.against, "HEAD"))]
        wanted, report = speed.measurements(times or 3, commits), speed.report
    machine = fingerprint()
    print(f"{machine['device']}; {', '.join(f'{name} {version}' for name, version in machine['versions'].items())}")
    print(report(measured(out, [(name, measure) for name, measure in wanted if arguments.only in name], jobs)))


if __name__ == "__main__":
    main()
