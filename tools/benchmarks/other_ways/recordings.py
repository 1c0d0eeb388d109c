"""What was recorded, and its files. Imports no TensorFlow."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stages import files

Durations = NDArray[np.int32]  # microseconds
NO_TURN = -1  # of the control, in a round in which it has no turn
LOADS = {"quiet": 0.0, "busy": 0.5}  # share of one core that another program takes
FIRST_EPOCHS = 8  # of `fit` by default in halfstep; recordings have more, for a longer training


@dataclass(frozen=True)
class Fit:
    """The durations of one `fit`; together they are its time up to the end of the last epoch.

    Attributes:
        step_us: of each training step, `(epochs, steps)`; the first one compiles.
        gap_us: what went by before each step, `(epochs, steps)`.
        tail_us: from the last step of each epoch to its end, with validation, `(epochs,)`.
    """

    step_us: Durations
    gap_us: Durations
    tail_us: Durations

    def slowed(self, ratio: float) -> Fit:
        """The same `fit`, had each step but the compiling one taken so many times as long."""
        step_us = np.rint(self.step_us * ratio).astype(np.int32)
        step_us[0, 0] = self.step_us[0, 0]
        return replace(self, step_us=step_us)

    def seconds(self, epochs: int) -> float:
        """The time of the first epochs, as a stopwatch shows it."""
        found = (self.step_us[:epochs].sum(), self.gap_us[:epochs].sum(), self.tail_us[:epochs].sum())
        return 1e-6 * float(sum(int(value) for value in found))

    def write(self, path: Path) -> None:
        """Writes the durations to a file."""
        with files.atomic_path(path) as temporary_path:
            np.savez_compressed(temporary_path, step_us=self.step_us, gap_us=self.gap_us, tail_us=self.tail_us)

    @classmethod
    def read(cls, path: Path) -> Fit:
        """Reads what `write` wrote."""
        with np.load(path) as arrays:
            return cls(**arrays)


@dataclass(frozen=True)
class Repeat:
    """One repeat of halfstep: three processes that run the same code in turns.

    Attributes:
        turn_us: of the baseline, the candidate and the control, `(3, rounds)`; `NO_TURN` where one has none.
        steps: training steps of a turn.
        start_s: seconds until the processes were ready, without imports.
        import_s: seconds until TensorFlow was imported, once in a measurement.
    """

    turn_us: Durations
    steps: int
    start_s: float
    import_s: float


@dataclass(frozen=True)
class Recording:
    """What was recorded under one load.

    Attributes:
        load: its name.
        about: machine, versions, and the load in words.
        fits: of processes that ran alone, one after the other.
        fit_s: wall time of each of these processes, from its start to its end.
        fit_began_s: when each of them began, in seconds since the epoch.
        repeats: of halfstep.
    """

    load: str
    about: str
    fits: tuple[Fit, ...] = ()
    fit_s: tuple[float, ...] = ()
    fit_began_s: tuple[float, ...] = ()
    repeats: tuple[Repeat, ...] = field(default=())

    def write(self, folder: Path) -> None:
        """Writes all to `<load>.npz` in the folder: the whole file, or nothing of it."""
        arrays = {name: np.array(getattr(self, name)) for name in ("about", "fit_s", "fit_began_s")}
        for name in Fit.__dataclass_fields__ if self.fits else ():
            arrays[f"fits_{name}"] = np.stack([getattr(item, name) for item in self.fits])
        for name in Repeat.__dataclass_fields__ if self.repeats else ():
            arrays[f"repeats_{name}"] = np.array([getattr(item, name) for item in self.repeats])
        with files.atomic_path(folder / f"{self.load}.npz") as temporary_path:
            np.savez_compressed(temporary_path, **arrays)  # type: ignore[arg-type]

    @classmethod
    def read(cls, folder: Path, load: str) -> Recording | None:
        """Reads what `write` wrote; None where there is none."""
        path = folder / f"{load}.npz"
        if not path.exists():
            return None
        with np.load(path) as arrays:
            times = {name: tuple(float(value) for value in arrays[name]) for name in ("fit_s", "fit_began_s")}
            fits = _columns(arrays, "fits_", list(Fit.__dataclass_fields__))
            repeats = _columns(arrays, "repeats_", list(Repeat.__dataclass_fields__))
            found = [
                Repeat(turn_us, int(steps), float(start_s), float(import_s))
                for turn_us, steps, start_s, import_s in repeats
            ]
            return cls(load, str(arrays["about"]), tuple(Fit(*row) for row in fits), **times, repeats=tuple(found))


def _columns(arrays: dict[str, NDArray], prefix: str, names: list[str]) -> list[tuple[NDArray, ...]]:
    """The rows of arrays that belong together; none where they were not written."""
    if f"{prefix}{names[0]}" not in arrays:
        return []
    return list(zip(*(arrays[f"{prefix}{name}"] for name in names), strict=True))
