"""Measures the default run: how far repeated profiles agree, and how long `dvc repro` takes beside another commit.

    python -m tools.benchmarks.default_run --out FILE --profiles 10              ten profiles in a row
    python -m tools.benchmarks.default_run --out FILE --against OLD --times 3    `dvc repro` of both commits in turns

Everything runs in clones of the project in temporary folders, with the parameters as they are. `--profiles` prints the
spread of each ratio beside the half-widths of its intervals. `--against` prints the wall time of each `dvc repro` of a
new clone, the part that bridging arms took, and the half-widths. Each measurement adds a line of JSON to `--out` at
once, and a rerun continues after the lines that are there. Changes that are not committed are not measured. Nothing is
asserted.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Literal

import pandas as pd
import yaml

from tools.benchmarks.checkout import Checkout, cloned, half_width, resolved

Kind = Literal["profile", "repro"]


@dataclass(frozen=True)
class Line:
    """One measurement.

    Attributes:
        kind: of `profile` alone, or of a whole `dvc repro`.
        commit: at which it was made.
        seconds: wall time of the stage, or of the whole run.
        bridge_s: seconds of it for bridging arms; 0 where the commit has none.
        timing_s: seconds of timing.
        stages_s: seconds of each stage; only of a whole run.
        outside_fit_s: seconds of each training outside of `fit`; only of a whole run.
        speedups: ratio and both ends of its interval, by candidate and measure.
        noise_floor: by measure.
    """

    kind: Kind
    commit: str
    seconds: float
    bridge_s: float
    timing_s: float
    speedups: dict[str, dict[str, float]]
    noise_floor: dict[str, float]
    stages_s: dict[str, float] = field(default_factory=dict)
    outside_fit_s: dict[str, float] = field(default_factory=dict)


def line_of(
    kind: Kind, commit: str, checkout: Checkout, seconds: float, stages_s: dict[str, float] | None = None
) -> Line:
    """What the results in a checkout say."""
    comparison = checkout.comparison()
    protocol = checkout.summary(comparison["baseline"])["protocol"]
    speedups = {
        f"{name} {measure}": {key: interval[key] for key in ("ratio", "low", "high")}
        for name, candidate in comparison["candidates"].items()
        for measure, interval in candidate["speedup"].items()
    }
    return Line(
        kind=kind,
        commit=commit[:12],
        seconds=seconds,
        bridge_s=protocol.get("bridge_seconds") or 0.0,
        timing_s=protocol["timing_seconds"],
        speedups=speedups,
        noise_floor=comparison["noise_floor"],
        stages_s=stages_s or {},
        outside_fit_s={
            name: stage_s - checkout.training_s(name)
            for name, stage_s in (stages_s or {}).items()
            if name.startswith("train@")
        },
    )


def profiles(commit: str, count: int) -> Iterator[Line]:
    """Profiles the default trainings of a commit so often, one after the other."""
    if count <= 0:
        return
    with cloned(commit) as checkout:
        settings = yaml.safe_load((checkout.root / "params.yaml").read_text(encoding="utf-8"))
        checkout.train(settings["train"]["variants"])
        for _ in range(count):
            seconds = checkout.stage("profile")
            checkout.stage("compare")
            yield line_of("profile", commit, checkout, seconds)


def repro(commit: str) -> Line:
    """Runs `dvc repro` in a new clone, whose data and cache are empty."""
    with cloned(commit) as checkout:
        seconds, stages_s, _ = checkout.timed_stages("dvc", "repro", "-f")
        return line_of("repro", commit, checkout, seconds, stages_s)


def spread(lines: list[Line]) -> pd.DataFrame:
    """By candidate and measure: mean and spread of the ratios of repeated profiles, and the half-widths."""
    ratios, lows, highs = (
        pd.DataFrame([{name: interval[key] for name, interval in line.speedups.items()} for line in lines])
        for key in ("ratio", "low", "high")
    )
    widths = (highs - lows) / 2
    return pd.DataFrame(
        {
            "profiles": ratios.count(),
            "mean ratio": ratios.mean(),
            "lowest": ratios.min(),
            "highest": ratios.max(),
            "sd": ratios.std(),
            "half-width, median": widths.median(),
            "half-width, smallest": widths.min(),
            "half-width, largest": widths.max(),
            "contain the mean": ((lows <= ratios.mean()) & (ratios.mean() <= highs)).sum(),
        }
    )


def side_by_side(lines: list[Line]) -> pd.DataFrame:
    """A column per run, in the order of the runs: seconds, and the half-width of each speed-up."""
    return pd.DataFrame(
        {
            f"{number} {line.commit}": {
                "dvc repro, s": line.seconds,
                "of it bridging arms, s": line.bridge_s,
                "without them, s": line.seconds - line.bridge_s,
                "timing, s": line.timing_s,
                "profile, s": line.stages_s.get("profile", 0.0),
                "a training outside of fit, s, mean": fmean(line.outside_fit_s.values() or [0.0]),
            }
            | {f"half-width, {name}": half_width(interval) for name, interval in line.speedups.items()}
            | {f"noise floor, {measure}": width for measure, width in line.noise_floor.items()}
            for number, line in enumerate(lines, start=1)
        }
    )


def main() -> None:
    """Measures what is missing and prints the tables."""
    parser = argparse.ArgumentParser(prog="python -m tools.benchmarks.default_run", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="file for one line of JSON per measurement")
    parser.add_argument("--profiles", type=int, default=0, help="number of profiles of one default run")
    parser.add_argument("--against", metavar="COMMIT", help="another commit, whose `dvc repro` runs in turns with ours")
    parser.add_argument("--times", type=int, default=3, help="runs of `dvc repro` per commit")
    arguments = parser.parse_args()
    head = resolved("HEAD")
    lines = _read(arguments.out)
    for line in profiles(head, arguments.profiles - len(_of("profile", head, lines))):
        lines.append(_written(line, arguments.out))
    if arguments.against:
        commits = [resolved(arguments.against), head]
        for turn in range(arguments.times):
            for commit in commits:
                if len(_of("repro", commit, lines)) <= turn:
                    lines.append(_written(repro(commit), arguments.out))
        runs = [line for line in lines if line in _of("repro", head, lines) + _of("repro", commits[0], lines)]
        print(side_by_side(runs).to_string(float_format="%.3f"))
    if arguments.profiles:
        print(spread(_of("profile", head, lines)).to_string(float_format="%.3f"))


def _read(out: Path) -> list[Line]:
    text = out.read_text(encoding="utf-8") if out.exists() else ""
    return [Line(**json.loads(line)) for line in text.splitlines()]


def _of(kind: Kind, commit: str, lines: list[Line]) -> list[Line]:
    return [line for line in lines if (line.kind, line.commit) == (kind, commit[:12])]


def _written(line: Line, out: Path) -> Line:
    with out.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(line)) + "\n")
    print(f"{line.kind} at {line.commit}: {line.seconds:.0f} s, {line.bridge_s:.0f} s of it bridging arms", flush=True)
    return line


if __name__ == "__main__":
    main()
