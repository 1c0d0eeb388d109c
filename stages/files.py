"""Where each thing lies, and how it is written: whole or not at all, with a digest of its own.

All paths are relative to the working folder, which is the root of the project when DVC starts a stage.
"""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from stages.errors import CorruptFileError, DataError

DATA = Path("data")
PREPARED = DATA / "prepared"
TRAIN = DATA / "train"
PROFILE = DATA / "profile"
COMPARE = DATA / "compare"
ENVIRONMENT_FILE = DATA / "environment.json"
TRACKING_FILE = DATA / "tracking.json"
SOURCE_FILE = DATA / "source.json"
MODEL_FILE = DATA / "model.json"
SCRATCH = Path(".halfstep")  # what must outlive a stage that DVC starts anew; ignored by git and DVC
CONTROL = "_control"  # the second copy of the baseline, for the A/A comparison
MANIFEST = "manifest.json"


def train_dir(variant: str, seed: int) -> Path:
    """The folder of one training's results."""
    return TRAIN / f"{variant}-{seed}"


def profile_dir(variant: str) -> Path:
    """The folder of one variant's measurements; `CONTROL` names the baseline's second copy."""
    return PROFILE / variant


def trace_file(variant: str) -> Path:
    """The trace of a variant, under a log directory's layout so that xprof and TensorBoard open `data/profile`."""
    return profile_dir(variant) / "trace" / "plugins" / "profile" / variant / "host.xplane.pb"


def original_root() -> Path:
    """Root of the checkout that the user works in, also when DVC runs the stage in a temporary copy of it."""
    return Path(os.environ.get("DVC_ROOT") or ".").resolve()


def resolve_data_path(path: str) -> Path:
    """A folder of the user's: `~` expanded; a relative one is looked for here, then in the original checkout.

    Folders that git and DVC do not track are missing from the temporary copies that `dvc exp run --temp` works in.
    """
    expanded = Path(path).expanduser()
    if expanded.is_absolute() or expanded.exists():
        return expanded
    return original_root() / expanded


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yields a temporary sibling of `path` to write to; it takes the place of `path` at a clean end of the block.

    Raises:
        DataError: the file system refuses to write, for example because it is full; the old file stays as it was.
    """
    beside = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}{path.suffix}")  # Keras insists on its suffix
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield beside
        _flush_to_disk(beside)
        beside.replace(path)
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({error.strerror or error}); the old file is untouched") from error
    finally:
        with suppress(OSError):  # the failure above is the one to tell
            beside.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Writes `text` as UTF-8, atomically."""
    with atomic_path(path) as beside:
        beside.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Writes `value` as indented JSON, atomically. Numbers that are not finite are refused: JSON has none."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """Reads a JSON file that a stage wrote.

    Raises:
        DataError: the file is missing.
        CorruptFileError: the file is not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise DataError(f"{path} is missing: run `dvc repro`") from error
    except (ValueError, UnicodeDecodeError) as error:
        raise CorruptFileError(f"{path} is not JSON ({error}): remove it and run `dvc repro`") from error


def sha256_file(path: Path) -> str:
    """Hexadecimal sha256 of a file's bytes."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def write_manifest(directory: Path) -> str:
    """Writes `manifest.json`, the sha256 of every other file below `directory`, and returns its own sha256."""
    write_json(directory / MANIFEST, _digests(directory))
    return sha256_file(directory / MANIFEST)


def check_manifest(directory: Path) -> str:
    """Checks that every file below `directory` is what its manifest says, and returns the manifest's sha256.

    Raises:
        DataError: there is no manifest.
        CorruptFileError: a file is missing or differs; DVC's cache hands out damaged files without a word.
    """
    expected = read_json(directory / MANIFEST)
    found = _digests(directory)
    for name, digest in expected.items():
        if found.get(name) != digest:
            state = "is missing" if name not in found else "is damaged (its sha256 differs)"
            raise CorruptFileError(
                f"{directory / name} {state}: it was changed after it was written; make it again with `dvc repro -f`"
            )
    return sha256_file(directory / MANIFEST)


def _digests(directory: Path) -> dict[str, str]:
    files = sorted(path for path in directory.rglob("*") if path.is_file() and path.name != MANIFEST)
    return {path.relative_to(directory).as_posix(): sha256_file(path) for path in files}


def _flush_to_disk(path: Path) -> None:
    with path.open("rb") as stream:
        os.fsync(stream.fileno())
