"""The repeats of a measurement on disk: what was timed outlives the stage, and a later start goes on from it.

Everything lies in `.halfstep/profile/` of the original checkout, in a folder whose name is a digest of all that decides
the times: parameters, inputs, machine, code and versions. A repeat is one file, which is written when it is complete.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from numpy.typing import NDArray
from pydantic import TypeAdapter

from halfstep.errors import BusyError, DataError
from halfstep.inputs.own_code import code_digest
from halfstep.machine import fingerprint
from halfstep.params.schema import Params, ProfileParams
from halfstep.profile.records import Measurement
from halfstep.results.artifact import write_array
from halfstep.results.profile import LargestBatch, RawTimes
from halfstep.system import files, locking
from halfstep.system.interpreters import versions_of

MAX_FOLDERS = 4  # of measurements, the newest
_AMOUNTS = ("target_precision", "max_seconds", "processes", "rounds")  # how much is measured, not what
_RELEASES = ("tensorflow", "keras", "numpy", "xprof")
_FILE, _LARGEST_FILE = "measurement.json", "largest_batches.json"
_MEASUREMENT = TypeAdapter(Measurement)
_TIMES = TypeAdapter(dict[str, RawTimes])
_LARGEST = TypeAdapter(dict[str, LargestBatch])
_T = TypeVar("_T")
_Key = TypeVar("_Key")


class Repeats:
    """The files of one measurement.

    Args:
        folder: where they are.
        asked: the parameters that say how much is measured.
        trained: by seed, sha256 of the manifest of the training whose weights are evaluated.

    Attributes:
        folder: as above; what begins with a dot there is not of the measurement, and stays.
        traces: the folder of the traces.
        measurement: of an earlier session that this one goes on from, with the times of its repeats; or a new one.
    """

    def __init__(
        self, folder: Path, asked: Mapping[str, float | None], trained: Mapping[int, str] | None = None
    ) -> None:
        self.folder, self.traces, self.asked = folder, folder / "traces", dict(asked)
        earlier, trained = self._read(_FILE, _MEASUREMENT), dict(trained or {})
        if earlier and earlier.repeats and self._goes_on(earlier, trained):
            self.measurement = earlier
            self._read_times()
            if earlier.trained != trained:
                earlier.drop_weights()
        else:
            self.measurement = Measurement(self.asked)
            self._clear()
        self.measurement.trained = trained

    def _goes_on(self, earlier: Measurement, trained: Mapping[int, str]) -> bool:
        """Whether this one goes on from an earlier one: it was not finished, more is asked, or was not trained yet."""
        is_first_training = bool(trained) and not earlier.trained
        return not earlier.finished or asks_for_more(self.asked, earlier.asked) or is_first_training

    def save(self) -> None:
        """Writes what is known so far. A full disk gives a warning, and the measurement continues."""
        self._write(_FILE, _MEASUREMENT.dump_json(self.measurement))

    def add(self, number: int) -> None:
        """Writes a complete repeat, and then the measurement that counts it."""
        times = {
            name: RawTimes(
                **{table: [row for row in rows if row.process == number] for table, rows in vars(record.times).items()}
            )
            for name, record in self.measurement.records.items()
        }
        self._write(_repeat(number), _TIMES.dump_json(times))
        self.save()

    def finish(self) -> None:
        """Notes that the results are written: the next measurement starts anew, unless it asks for more."""
        self.measurement.finished = True
        self.save()

    def keep_array(self, name: str, seed: int, outputs: NDArray[Any]) -> Path:
        """Writes what the baseline's weights give in an arm's precision, and returns the file."""
        path = self.folder / f"same_weights-{name}-{seed}.npy"
        write_array(path, outputs)
        return path

    @property
    def largest(self) -> dict[str, LargestBatch]:
        """The largest batches that this measurement found, by variant."""
        return self._read(_LARGEST_FILE, _LARGEST) or {}

    def keep_largest(self, largest: dict[str, LargestBatch]) -> None:
        """Writes the largest batches so far."""
        self._write(_LARGEST_FILE, _LARGEST.dump_json(largest))

    def _read_times(self) -> None:
        """Reads the repeats; from the first damaged one on they are measured again."""
        for number in range(self.measurement.repeats):
            times_by_arm = self._read(_repeat(number), _TIMES)
            if times_by_arm is None:
                print(f"profile: {self.folder / _repeat(number)} is damaged; measured again from there", flush=True)
                self.measurement.repeats = number
                self.measurement.reopen()
                return
            for name in times_by_arm.keys() & self.measurement.records.keys():
                for table, rows in vars(self.measurement.records[name].times).items():
                    rows.extend(getattr(times_by_arm[name], table))

    def _clear(self) -> None:
        for path in self.folder.iterdir() if self.folder.is_dir() else ():
            if not path.name.startswith("."):  # the lock
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    def _read(self, name: str, content: TypeAdapter[_T]) -> _T | None:
        """What a file holds, which is compressed and so has a checksum; None if it is absent or damaged."""
        try:
            return content.validate_json(zlib.decompress((self.folder / name).read_bytes()))
        except (OSError, ValueError, zlib.error):
            return None

    def _write(self, name: str, content: bytes) -> None:
        try:
            with files.atomic_path(self.folder / name) as temporary_path:
                temporary_path.write_bytes(zlib.compress(content))
        except DataError as error:
            print(f"profile: warning: {error}; the measurement goes on, and is lost if it is interrupted", flush=True)


def _repeat(number: int) -> str:
    return f"repeat-{number:03d}.json"


def asks_for_more(asked: Mapping[str, float | None], before: Mapping[str, float | None]) -> bool:
    """Whether a finished measurement goes on: an amount was raised, or what ends a measure early has changed."""
    raised = any((asked[name] or 0) > (before.get(name) or 0) for name in ("max_seconds", "processes", "rounds"))
    narrower = (asked["target_precision"] or 1) < (before.get("target_precision") or 0)
    return raised or narrower or asked["min_speedup"] != before.get("min_speedup")


def amounts(profile: ProfileParams, min_speedup: float) -> dict[str, float | None]:
    """The parameters that say how much is measured."""
    return {name: getattr(profile, name) for name in _AMOUNTS} | {"min_speedup": min_speedup}


def digests_of(trained: Mapping[_Key, Path]) -> dict[_Key, str]:
    """The sha256 of the manifests of trainings, by the keys of their folders."""
    return {key: files.sha256_file(folder / files.MANIFEST) for key, folder in trained.items()}


def inputs_of(prepared_sha256: str | None, **others: Any) -> dict[str, Any]:
    """Digests of what a measurement depends on beside the parameters: machine, data and own code.

    Args:
        prepared_sha256: of the manifest of the prepared data.
        others: what else.
    """
    return {
        "machine": fingerprint.read(),
        "data": prepared_sha256,
        "own": [path.read_text(encoding="utf-8") for path in (files.MODEL_FILE, files.TASK_FILE) if path.is_file()],
        **others,
    }


def measurement_key(
    settings: Params, inputs: Mapping[str, Any], *, with_occasion: bool = True, code: str = "profile"
) -> str:
    """Digest of all that decides the times: parameters, inputs, code and releases.

    How long is trained decides none, so that what was timed before the trainings counts after them.

    Args:
        settings: all parameters.
        inputs: digests of the machine, the data and the user's code.
        with_occasion: whether each `profile.occasion` has another one.
        code: the stage that measures.
    """
    left_out = {*_AMOUNTS, "confirm"} if with_occasion else {*_AMOUNTS, "confirm", "occasion"}
    pythons = {name: settings.variants[name].python for name in settings.train.variants}
    parts = {
        "task": settings.task.model_dump(mode="json"),
        "model": settings.model.model_dump(mode="json"),
        "train": settings.train.model_dump(mode="json", exclude={"checkpoint_every", "epochs", "require_gpu"}),
        "variants": {name: settings.variants[name].timed_as for name in settings.train.variants},
        "profile": settings.profile.model_dump(mode="json", exclude=left_out),
        "baseline": settings.compare.baseline,
        "inputs": dict(inputs),
        "code": code_digest(code),
        "releases": {name: version for name, version in fingerprint.versions().items() if name in _RELEASES},
        "interpreters": {name: versions_of(python) for name, python in pythons.items() if python is not None},
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


@contextmanager
def opened(
    key: str, asked: Mapping[str, float | None], trained: Mapping[int, str] | None = None, folder: str = "profile"
) -> Iterator[Repeats]:
    """Opens the folder of a measurement in the original checkout; one process holds it.

    Args:
        key: of `measurement_key`.
        asked, trained: as of `Repeats`.
        folder: in `.halfstep`.

    Raises:
        BusyError: another process measures the same.
    """
    root = files.original_root() / files.WORK_DIR / folder
    mine = root / key[:16]
    mine.mkdir(parents=True, exist_ok=True)
    lock = locking.try_lock(mine / ".lock")
    if lock is None:
        raise BusyError(f"{mine} is in use by another process, which measures the same; wait for it or end it")
    with lock:
        _remove_oldest(root, mine)
        yield Repeats(mine, asked, trained)


def _remove_oldest(root: Path, mine: Path) -> None:
    others = [path for path in root.iterdir() if path.is_dir() and path != mine]
    for path in sorted(others, key=lambda path: path.stat().st_mtime)[: max(0, len(others) - MAX_FOLDERS + 1)]:
        lock = locking.try_lock(path / ".lock")
        if lock is not None:
            with lock, suppress(OSError):
                shutil.rmtree(path)
