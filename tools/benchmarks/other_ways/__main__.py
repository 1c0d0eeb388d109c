"""Holds halfstep's verdict against what a user would do otherwise, for candidates whose speed-up is known.

    python -m tools.benchmarks.other_ways record --out DIR         processes and repeats, under each load
    python -m tools.benchmarks.other_ways draw --out DIR           1,000 answers of each way from them
    python -m tools.benchmarks.other_ways end_to_end --out DIR     each way as a user runs it, five times
    python -m tools.benchmarks.other_ways table --out DIR --docs FILE

`record` and `end_to_end` write each result at once and go on where they stopped; `--minutes` bounds them. `end_to_end`
needs pyperf for its way (`pip install pyperf==2.10.0`). Nothing is asserted. `table` renders what is in DIR.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path

from stages.locking import machine_lock
from tools.benchmarks.other_ways import drawing, end_to_end, recording, table
from tools.benchmarks.other_ways.recordings import LOADS, Recording

DRAWS, FITS, REPEATS, ROUNDS, TIMES = 1000, 60, 20, 60, 5


def main() -> None:
    """Runs one of the commands."""
    arguments = _parser().parse_args()
    ends_s = time.monotonic() + 60 * arguments.minutes

    def goes_on() -> bool:
        return time.monotonic() < ends_s

    out: Path = arguments.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    if arguments.command == "record":
        with machine_lock():
            for load in arguments.loads:
                recording.record(out, load, arguments.fits, arguments.repeats, arguments.rounds, goes_on)
    elif arguments.command == "draw":
        draw(out, arguments.draws)
    elif arguments.command == "end_to_end":
        given = arguments.loads, arguments.truths, arguments.runs, arguments.times
        for line in end_to_end.run_missing(out, *given, goes_on):
            print(line, flush=True)
    else:
        arguments.docs.write_text(table.page(out), encoding="utf-8")


def draw(out: Path, draws: int) -> None:
    """Draws from all recordings, and writes the shares."""
    rows = []
    for load in LOADS:
        found = Recording.read(out, load)
        for row in drawing.rows(found, draws) if found else ():
            rows.append(row)
            print(f"{load}, {row.way}, {row.truth:g}: wrong {row.wrong:.1%}, median {row.ratio:.3f}", flush=True)
    table.write_rows(out, rows)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tools.benchmarks.other_ways",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=("record", "draw", "end_to_end", "table"))
    parser.add_argument("--out", type=Path, required=True, help="folder of the recordings and of the answers")
    parser.add_argument("--minutes", type=float, default=math.inf, help="nothing new is begun after them")
    parser.add_argument("--loads", nargs="+", choices=LOADS, default=list(LOADS))
    parser.add_argument("--fits", type=int, default=FITS, help="processes that train alone, under each load")
    parser.add_argument("--repeats", type=int, default=REPEATS, help="repeats of halfstep, under each load")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds of each of them")
    parser.add_argument("--draws", type=int, default=DRAWS, help="answers of each way")
    parser.add_argument("--truths", nargs="+", type=float, choices=drawing.TRUTHS, default=list(drawing.TRUTHS))
    parser.add_argument("--runs", nargs="+", choices=end_to_end.RUNS, default=list(end_to_end.RUNS))
    parser.add_argument("--times", type=int, default=TIMES, help="whole runs of each way, for each load and effect")
    parser.add_argument("--docs", type=Path, help="page to write, for `table`")
    return parser


if __name__ == "__main__":
    main()
