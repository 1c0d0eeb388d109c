"""Where each thing lies, and how it is written: whole or not at all, with a digest of its own.

All paths are relative to the working folder, which is the root of the project when DVC starts a stage.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from stages import cache
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


def require_free_space(directory: Path, needed_bytes: int, instead: str) -> None:
    """Refuses to begin what the disk cannot hold.

    Args:
        directory: where it will be written; it need not exist yet.
        needed_bytes: the most that will lie there at one time, beside what lies there now.
        instead: what to do other than making room, in words.

    Raises:
        DataError: less is free for this user.
    """
    there = next(folder for folder in (directory, *directory.absolute().parents) if folder.is_dir())
    free_bytes = shutil.disk_usage(there).free
    if free_bytes < needed_bytes:
        raise DataError(
            f"{directory}: {_size(needed_bytes)} are needed there and {_size(free_bytes)} are free; "
            f"make room, or {instead}"
        )


def _size(count_bytes: int) -> str:
    return f"{count_bytes / 2**30:.1f} GiB" if count_bytes >= 2**30 else f"{count_bytes / 2**20:.1f} MiB"


def write_text(path: Path, text: str) -> None:
    """Writes `text` as UTF-8, atomically."""
    with atomic_path(path) as beside:
        beside.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Writes `value` as indented JSON, atomically. Numbers that are not finite are refused: JSON has none."""
    write_text(path, _as_json(value))


def _as_json(value: Any) -> str:
    return json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False) + "\n"


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


def sealed(content: Mapping[str, Any], key: str = "sha256") -> dict[str, Any]:
    """`content` with the sha256 of its own JSON under `key`, for a file that no manifest speaks of."""
    return {**content, key: hashlib.sha256(_as_json(content).encode()).hexdigest()}


def read_sealed(path: Path, key: str = "sha256") -> dict[str, Any]:
    """Reads what was written by `write_json(path, sealed(content, key))`; the seal stays in it.

    Raises:
        DataError: the file is missing.
        CorruptFileError: it is not what was written.
    """
    found = read_json(path)
    content = {name: value for name, value in found.items() if name != key} if isinstance(found, dict) else {}
    if found != sealed(content, key) or path.read_text(encoding="utf-8") != _as_json(found):
        raise CorruptFileError(f"{path} is damaged (its sha256 differs): remove it and run `dvc repro`")
    return dict(found)


def write_manifest(directory: Path) -> str:
    """Writes `manifest.json`, the sha256 of every other file below `directory` and of the manifest's own content.

    Returns:
        The sha256 of `manifest.json` as it lies there.
    """
    write_json(directory / MANIFEST, sealed(_digests(directory), MANIFEST))
    return sha256_file(directory / MANIFEST)


def check_manifest(directory: Path) -> str:
    """Checks that every file below `directory` is what its manifest says, and returns the manifest's sha256.

    Raises:
        DataError: there is no manifest.
        CorruptFileError: a file is missing or differs; DVC's cache hands out damaged files without a word.
    """
    for name, digest in read_manifest(directory).items():
        _check(directory, name, digest)
    return sha256_file(directory / MANIFEST)


def checked(directory: Path, name: str) -> Path:
    """The path of one file below `directory`, once it is known to be what the manifest says. The others are not read.

    Raises:
        DataError: there is no manifest.
        CorruptFileError: the file is missing, differs, or is not in the manifest.
    """
    _check(directory, name, read_manifest(directory).get(name))
    return directory / name


def read_manifest(directory: Path) -> dict[str, str]:
    """The sha256 of each file below `directory`, by its name, as `write_manifest` wrote them.

    Raises:
        DataError: there is no manifest.
        CorruptFileError: it is not what was written.
    """
    try:
        found = read_sealed(directory / MANIFEST, MANIFEST)
    except CorruptFileError as error:
        raise CorruptFileError(f"{directory / MANIFEST} is damaged; {_make_again(directory, MANIFEST)}") from error
    return {name: digest for name, digest in found.items() if name != MANIFEST}


def stage_of(path: Path) -> str:
    """The DVC stage that writes a file or folder below `data/`."""
    if path.is_relative_to(TRAIN) and path != TRAIN:
        return f"train@{path.relative_to(TRAIN).parts[0]}"
    return next((stage for stage in ("profile", "compare") if path.is_relative_to(DATA / stage)), "prepare")


def _check(directory: Path, name: str, digest: str | None) -> None:
    path = directory / name
    if not path.is_file():
        raise CorruptFileError(f"{path} is missing; {_make_again(directory, name)}")
    if digest is None or sha256_file(path) != digest:
        state = "is not in the manifest beside it" if digest is None else "is damaged (its sha256 differs)"
        raise CorruptFileError(f"{path} {state}: it was changed after it was written; {_make_again(directory, name)}")


def _make_again(directory: Path, name: str) -> str:
    """What to do about a damaged file. A damaged object of DVC's cache survives `dvc repro`: DVC takes it for whole."""
    again = f"make it again with `dvc repro -f -s {stage_of(directory)}`"
    kept = cache.damaged_copy(original_root(), directory, name)
    return f"remove {kept}, DVC's damaged copy, and {again}" if kept else again


def _digests(directory: Path) -> dict[str, str]:
    files = sorted(path for path in directory.rglob("*") if path.is_file() and path.name != MANIFEST)
    return {path.relative_to(directory).as_posix(): sha256_file(path) for path in files}


def _flush_to_disk(path: Path) -> None:
    with path.open("rb") as stream:
        os.fsync(stream.fileno())
