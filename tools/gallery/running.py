"""Runs studies as DVC experiments, the shortest first, and keeps a result of each."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import date
from typing import Any

from halfstep.compare.ratio_text import ratio_text
from halfstep.errors import HalfstepError, one_line
from halfstep.params import loading
from halfstep.system import files
from halfstep.tracking.provenance import git_tags
from halfstep.words.text import TRAIN
from tools.benchmarks.load import other_load
from tools.gallery import experiment, results
from tools.gallery.results import GalleryError, Result, Results
from tools.gallery.studies import MEASURED, Study, overrides

_STARTED = files.WORK_DIR / "gallery.json"  # the day on which a run began that was killed


def occasion_of(asked: str | None) -> str:
    """The occasion that is measured: the one asked for, that of a killed run, or the day.

    Raises:
        GalleryError: it cannot be part of a file's name.
    """
    if asked is not None and not re.fullmatch(results.OCCASION, asked):
        raise GalleryError(
            f"--occasion {one_line(asked, 60)}: it must be at most 40 letters, digits, dots and hyphens, such as "
            "2026-01-31 or busy"
        )
    with suppress(HalfstepError, LookupError, TypeError):  # a run over midnight goes on
        return asked or str(files.read_json(_STARTED)["occasion"])
    files.write_json(_STARTED, {"occasion": (today := date.today().isoformat())})
    return today


def ended() -> None:
    """Forgets the occasion of a run that was not killed."""
    _STARTED.unlink(missing_ok=True)


def missing(
    wanted: Sequence[Study], measured: Results, machine: Mapping[str, Any], occasion: str | None
) -> list[tuple[Study, float]]:
    """The studies without a result of this machine that is up to date, with the seconds they take, the shortest first.

    Args:
        wanted: studies to look for.
        measured: all results.
        machine: as `results.environment` describes it.
        occasion: only results of this one count; None: those of any occasion.
    """
    open_ones = list[tuple[Study, float]]()
    for study in wanted:
        known = measured.of(results.machine_id(machine), study.name)
        current = [one.occasion for one in known if one.halfstep == results.version()]
        if not (current if occasion is None else occasion in current):
            open_ones.append((study, max((one.seconds for one in known), default=60 * study.minutes)))
    return sorted(open_ones, key=lambda pair: pair[1])


def measure(
    planned: Sequence[tuple[Study, float]],
    machine: Mapping[str, Any],
    occasion: str,
    minutes: float | None,
    load_cores: float | None = None,
) -> list[str]:
    """Measures studies one after the other, and writes each result at once.

    Args:
        planned: studies, with the seconds that each is expected to take.
        machine: as `results.environment` describes it.
        occasion: names the measurement.
        minutes: a study that is not expected to end within them is not started; None: no limit.
        load_cores: share of a core that another program takes meanwhile.

    Returns:
        The names of studies that failed; each has a line on standard error.
    """
    ends_s = None if minutes is None else time.monotonic() + 60 * minutes
    failed = list[str]()
    for number, (study, expected_s) in enumerate(planned, start=1):
        about = f"about {max(1, round(expected_s / 60))} min"
        if ends_s is not None and time.monotonic() + expected_s > ends_s:
            print(f"gallery: {study.name} ({about}) does not fit into --minutes any more", flush=True)
            continue
        print(f"gallery: {study.name}, {number} of {len(planned)}, {about}: {study.shows}", flush=True)
        try:
            with other_load(load_cores or 0.0):
                result = run(study, machine, occasion, load_cores)
        except HalfstepError as error:
            print(f"gallery: {study.name} failed: {one_line(str(error))}", file=sys.stderr, flush=True)
            failed.append(study.name)
            continue
        print(f"gallery: {study.name}: {verdicts(result)}; {result.seconds:.0f} s", flush=True)
    return failed


def run(study: Study, machine: Mapping[str, Any], occasion: str, load_cores: float | None = None) -> Result:
    """Runs a study as an experiment, and writes its result; what a killed run has done is not done again.

    Raises:
        HalfstepError: the study or its experiment cannot be run.
    """
    started_s, settings = time.monotonic(), study.settings(machine, occasion)
    name = re.sub(r"[^a-z0-9]+", "-", f"gallery-{study.name}-{occasion}".lower())
    tags = git_tags()
    experiment.run(name, overrides(loading.load(), settings))
    comparison = results.public(experiment.comparison_of(name))
    result = Result(
        study=study.name,
        occasion=occasion,
        date=date.today().isoformat(),
        commit=tags["git.commit"],
        dirty=tags["git.dirty"] == "true",
        halfstep=results.version(),
        machine=results.machine_id(comparison.environment),
        parameters_sha256=study.sha256(machine),
        seconds=round(time.monotonic() - started_s, 1),
        load_cores=load_cores,
        comparison=comparison,
    )
    result.write(MEASURED / result.place)
    return result


def verdicts(result: Result) -> str:
    """Such as `mixed_bfloat16 adopt 1.40× (1.35 to 1.46)`: each variant's training."""
    candidates = result.comparison.candidates.items()
    texts = {name: (item.verdict, item.speedups.get(TRAIN)) for name, item in candidates}
    return "; ".join(
        f"{name} {verdict}{f' {ratio_text(speedup)}' if speedup else ''}" for name, (verdict, speedup) in texts.items()
    )
