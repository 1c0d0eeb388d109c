"""What `compare` found on each occasion: measurements of the same arms on other minutes of the same machine.

`data/occasions/` has a folder for each measurement, whose name is the digest of all that decides its times but
`profile.occasion`, and in it a file for each word. DVC keeps the folder when the stage runs again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar
from urllib.parse import quote

from pydantic import Field

from halfstep.results.artifact import Document, Record
from halfstep.results.profile import Protocol
from halfstep.system import files

FOLDER = files.DATA / "occasions"
Pair = tuple[str, str]  # names of two arms, whose ratio is that of the first one's time to the second one's


class FoundRatio(Record):
    """A ratio that an occasion found.

    Attributes:
        arms: names of the two arms.
        measure: what was timed.
        log_ratio: logarithm of the first arm's time / the second one's.
        standard_error, degrees: of it, within the run.
        confidence: of the look that ended it.
    """

    arms: Pair
    measure: str
    log_ratio: float
    standard_error: float
    degrees: float
    confidence: float


class OccasionFile(Document):
    """A file of `data/occasions/`.

    Attributes:
        occasion: `profile.occasion`; absent without a word.
        void: measures that decide nothing: the two copies of the baseline differ, or the GPU was throttled.
        ratios: what was found.
    """

    VERSION: ClassVar[int] = 1

    occasion: str | None = None
    void: tuple[str, ...] = ()
    ratios: tuple[FoundRatio, ...] = Field(default=())


@dataclass(frozen=True)
class Earlier:
    """What other occasions found of the arms of a study.

    Attributes:
        by_word: content of the files by the word in them; that of the study itself is not among them.
    """

    by_word: Mapping[str | None, OccasionFile]

    def of(self, arms: Pair, measure: str) -> tuple[FoundRatio, ...]:
        """The ratio of two arms on each occasion on which the measure is not void."""
        return tuple(
            ratio
            for occasion in self.by_word.values()
            if measure not in occasion.void
            for ratio in occasion.ratios
            if (ratio.arms, ratio.measure) == (arms, measure)
        )

    def left_out(self, measure: str) -> list[str | None]:
        """The words of occasions that do not count for a measure."""
        return [word for word, occasion in self.by_word.items() if measure in occasion.void]


def read_earlier(protocol: Protocol | None) -> Earlier:
    """Reads what other occasions found; nothing for results that do not say of which measurement they are.

    Raises:
        CorruptFileError: a file is not what was written.
    """
    if protocol is None or protocol.measurement is None:
        return Earlier({})
    paths = sorted((FOLDER / protocol.measurement).glob("*.json"))
    occasions = (OccasionFile.read(path) for path in paths)
    return Earlier({item.occasion: item for item in occasions if item.occasion != protocol.occasion})


def write_occasion(protocol: Protocol | None, void: frozenset[str], ratios: Iterable[FoundRatio]) -> None:
    """Writes what this run found by itself; the folder exists in any case, as DVC expects it.

    Args:
        protocol: of the measurement; None if there is none.
        void: measures that decide nothing.
        ratios: what was found.
    """
    FOLDER.mkdir(parents=True, exist_ok=True)
    if protocol is None or protocol.measurement is None:
        return
    content = OccasionFile(occasion=protocol.occasion, void=tuple(sorted(void)), ratios=tuple(ratios))
    content.write(_path(protocol.measurement, protocol.occasion))


def _path(measurement: str, word: str | None) -> Path:
    """The file of a word, whose name shows the word as far as a file's name can."""
    if word is None:
        return FOLDER / measurement / "unnamed.json"
    digest = hashlib.sha256(word.encode()).hexdigest()[:8]
    return FOLDER / measurement / f"{quote(word, safe='')[:80]}-{digest}.json"
