"""`dvc repro` of the default run and of ResNet-20 at 64 px, in new clones, in turns with another commit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pandas as pd

from tools.benchmarks.checkout import cloned, half_width

RESNET20 = {
    "model.name": "resnet20",
    "data.source": "synthetic",
    "data.image_size": 64,
    "train.variants": ["float32", "mixed_bfloat16"],
    "train.epochs": 0,
}
STUDIES: Mapping[str, Mapping[str, Any]] = {"default": {}, "resnet20_64": RESNET20}


def measurements(times: int, commits: Sequence[str]) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """Each study of each commit so often, in turns."""
    for turn in range(times):
        for study in STUDIES:
            for commit in commits:
                yield f"{study}, {commit[:12]}, {turn}", partial(repro, study, commit)


def repro(study: str, commit: str) -> dict[str, Any]:
    """Runs `dvc repro` in a new clone, whose data and cache are empty, and returns what it took and found."""
    with cloned(commit) as checkout:
        checkout.configure(STUDIES[study])
        seconds, stages_s, first_s = checkout.timed_stages("dvc", "repro", "-f")
        comparison = checkout.comparison()
        protocol = checkout.summary(comparison["baseline"])["protocol"]
        speedups = {
            f"{name} {measure}": {key: interval[key] for key in ("ratio", "low", "high")}
            for name, candidate in comparison["candidates"].items()
            for measure, interval in candidate["speedup"].items()
        }
    return {
        "study": study,
        "commit": commit[:12],
        "seconds": seconds,
        "profile_s": stages_s["profile"],
        "first_line_s": first_s,
        "timing_s": protocol["timing_seconds"],
        "bridge_s": protocol.get("bridge_seconds") or 0.0,
        "speedups": speedups,
        "noise_floor": comparison["noise_floor"],
    }


def report(rows: Sequence[Mapping[str, Any]]) -> str:
    """A column for each study of each commit: medians of the seconds, and by ratio its spread and its half-width."""
    return pd.DataFrame(dict(_columns(rows))).to_string(float_format="%.3f")


def _columns(rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    for study, commit in dict.fromkeys((row["study"], row["commit"]) for row in rows):
        runs = [row for row in rows if (row["study"], row["commit"]) == (study, commit)]
        table = pd.DataFrame(runs)
        column: dict[str, Any] = {"runs": len(runs), "dvc repro, s": table["seconds"].median()}
        column["profile, s"] = table["profile_s"].median()
        column["of it timing"] = (table["timing_s"] / table["profile_s"]).median()
        column["first line, s"] = table["first_line_s"].median()
        for name in runs[0]["speedups"]:
            intervals = pd.DataFrame([row["speedups"][name] for row in runs if name in row["speedups"]])
            mean = intervals["ratio"].mean()
            column[f"{name}, ratio"] = mean
            column[f"{name}, sd"] = intervals["ratio"].std()
            column[f"{name}, half-width"] = intervals.apply(half_width, axis=1).median()
            column[f"{name}, hold the mean"] = ((intervals["low"] <= mean) & (mean <= intervals["high"])).sum()
        yield f"{study}, {commit}", column
