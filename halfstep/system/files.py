"""Paths of the pipeline's files, atomic writes and checksums.

All paths are relative to the working directory, which is the root of the project when DVC starts a stage.
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

from halfstep.errors import CorruptFileError, DataError
from halfstep.system import dvc_cache
from halfstep.words.text import MIB

DATA = Path("data")
PREPARED = DATA / "prepared"
TASK_INFO = PREPARED / "task.json"
TRAIN = DATA / "train"
PROFILE = DATA / "profile"
SERVE = DATA / "serve"
COMPARE = DATA / "compare"
REPORT = COMPARE / "report.html"
ENVIRONMENT_FILE = DATA / "environment.json"
KEYS = (
    DATA / "keys"
)  # digests of what stages depend on and DVC cannot name; beside these, one of the code of each stage
TRACKING_FILE = KEYS / "tracking"
SOURCE_FILE = KEYS / "source"
MODEL_FILE = KEYS / "model"
TASK_FILE = KEYS / "task"
VARIANT_KEYS = KEYS / "variants"  # what this machine decides of each
WORK_DIR = Path(".halfstep")  # kept when DVC reruns a stage; ignored by git and DVC
_CHUNK = 2**20  # bytes
JUDGE = WORK_DIR / "judge"  # the workspace of `halfstep judge`
JUDGE_CALL = WORK_DIR / "judge.json"  # in that workspace: the arguments of the last call
JUDGE_REPORT = WORK_DIR / "report.html"  # the copy of its report, in the folder in which it was called
CONTROL = "_control"  # the second copy of the baseline, for the A/A comparison
BRIDGE_PREFIX = "_bridge_"  # of arms with the baseline's policy and a candidate's other settings
MANIFEST = "manifest.json"


def train_dir(variant: str, seed: int) -> Path:
    """Directory of one training's results."""
    return TRAIN / f"{variant}-{seed}"


def profile_dir(variant: str) -> Path:
    """Directory of one variant's measurements; `CONTROL` names the baseline's second copy."""
    return PROFILE / variant


def is_variant(arm: str) -> bool:
    """Whether an arm is a variant: the control and bridging arms have names that no variant may have."""
    return not arm.startswith("_")


def trace_file(variant: str) -> Path:
    """Trace of a variant. `data/profile` is laid out as a log directory that xprof and TensorBoard can open."""
    return profile_dir(variant) / "trace" / "plugins" / "profile" / variant / "host.xplane.pb"


def _folder_in_repository() -> Path:
    """Where the working folder stands in the repository of DVC: in a monorepo it is not its root."""
    here = Path.cwd()
    root = next((folder for folder in (here, *here.parents) if (folder / ".dvc").is_dir()), here)
    return here.relative_to(root)


_below_dvc_root = _folder_in_repository() if os.environ.get("DVC_ROOT") else Path()  # a script changes the folder later


def original_root() -> Path:
    """The folder of the user's `params.yaml`, also in a copy of the repository that DVC has made."""
    return (Path(os.environ.get("DVC_ROOT") or ".") / _below_dvc_root).resolve()


def judged_folder() -> Path | None:
    """The folder in which `halfstep judge` was called, if this is its workspace or a copy of it."""
    root = original_root()
    return root.parents[1] if root.parts[-2:] == JUDGE.parts else None


def shown(path: str | Path) -> Path:
    """A file of the results, as a user finds it from where the command was called."""
    return Path(path) if judged_folder() is None else JUDGE / path


def shown_report() -> Path:
    """The page of the report, as a user finds it from where the command was called."""
    return REPORT if judged_folder() is None else JUDGE_REPORT


def resolve_data_path(path: str) -> Path:
    """Resolves a path given by the user: expands `~`; a relative path may be in the original checkout instead.

    Directories that neither git nor DVC tracks are missing from the temporary copies of `dvc exp run --temp`.
    """
    expanded = Path(os.path.expanduser(path))  # noqa: PTH111  Path.expanduser raises an error for an unknown user
    if expanded.is_absolute() or os.path.exists(expanded):  # noqa: PTH110  Path.exists raises one for a long name
        return expanded
    return original_root() / expanded


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yields a temporary path in the same directory, which replaces `path` if the block ends without an error.

    Raises:
        DataError: the file cannot be written, for example because the disk is full; the previous file is unchanged.
    """
    suffix = "".join(path.suffixes)  # Keras checks it: `.keras`, `.weights.h5`
    temporary_path = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}{suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary_path
        _flush_to_disk(temporary_path)
        temporary_path.replace(path)
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({error.strerror or error}); the old file is unchanged") from error
    finally:
        with suppress(OSError):  # the error above is the one to report
            temporary_path.unlink(missing_ok=True)


def require_free_space(directory: Path, needed_bytes: int, alternative: str) -> None:
    """Checks that the disk has enough free space.

    Args:
        directory: where the files will be written; it may not exist yet.
        needed_bytes: largest total size of the new files at any one time.
        alternative: what the user can do instead of freeing space; part of the message.

    Raises:
        DataError: less space is available to this user.
    """
    existing = next(folder for folder in (directory, *directory.absolute().parents) if folder.is_dir())
    free_bytes = shutil.disk_usage(existing).free
    if free_bytes < needed_bytes:
        raise DataError(
            f"{directory}: {_size(needed_bytes)} are needed and {_size(free_bytes)} are free; "
            f"free some disk space, or {alternative}"
        )


def _size(count_bytes: int) -> str:
    return f"{count_bytes / 2**30:.1f} GiB" if count_bytes >= 2**30 else f"{count_bytes / MIB:.1f} MiB"


def write_text(path: Path, text: str) -> None:
    """Writes `text` as UTF-8, atomically."""
    with atomic_path(path) as temporary_path:
        temporary_path.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Writes `value` as indented JSON, atomically; a number that is not finite raises a ValueError."""
    write_text(path, _to_json(value))


def update_json(path: Path, value: Any) -> None:
    """As `write_json`, but a file that says so already is not touched: it need not be flushed to the disk again."""
    text = _to_json(value)
    with suppress(OSError):
        if path.is_file() and path.read_bytes() == text.encode():
            return
    write_text(path, text)


def _to_json(value: Any) -> str:
    return json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False) + "\n"


def read_json(path: Path) -> Any:
    """Reads a JSON file.

    Raises:
        DataError: the file is missing.
        CorruptFileError: the file is not JSON, or no regular file: a named pipe would never end.
    """
    if path.exists() and not path.is_file():
        raise CorruptFileError(f"{path} is not a regular file: remove it and run `dvc repro`")
    try:
        return json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
    except FileNotFoundError as error:
        raise DataError(f"{path} is missing: run `dvc repro`") from error
    except RecursionError as error:
        raise CorruptFileError(f"{path} is nested too deep: remove it and run `dvc repro`") from error
    except (ValueError, UnicodeDecodeError) as error:
        raise CorruptFileError(f"{path} is not JSON ({error}): remove it and run `dvc repro`") from error


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number of JSON")


def sha256_file(path: Path) -> str:
    """Hexadecimal sha256 of a file's bytes."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def with_checksum(content: Mapping[str, Any], key: str = "sha256") -> dict[str, Any]:
    """Returns `content` with the sha256 of its JSON under `key`, for a file that no manifest lists."""
    return {**content, key: hashlib.sha256(_to_json(content).encode()).hexdigest()}


def read_verified_json(path: Path, key: str = "sha256") -> dict[str, Any]:
    """Reads a file written by `write_json(path, with_checksum(content, key))`, checksum included.

    Raises:
        DataError: the file is missing.
        CorruptFileError: the checksum differs.
    """
    data = read_json(path)
    content = {name: value for name, value in data.items() if name != key} if isinstance(data, dict) else {}
    if data != with_checksum(content, key) or path.read_text(encoding="utf-8") != _to_json(data):
        raise CorruptFileError(f"{path} is damaged (its sha256 differs): remove it and run `dvc repro`")
    return dict(data)


def write_manifest(directory: Path) -> str:
    """Writes `manifest.json`: the sha256 of every other file below `directory`, and of the manifest's own content.

    Returns:
        The sha256 of `manifest.json`.
    """
    write_json(directory / MANIFEST, with_checksum(_checksums(directory), MANIFEST))
    return sha256_file(directory / MANIFEST)


def verify_manifest(directory: Path) -> str:
    """Checks every file that the manifest of `directory` lists, and returns the manifest's sha256.

    DVC does not detect a damaged file in its cache, so it may restore one.

    Raises:
        DataError: the manifest is missing.
        CorruptFileError: a file is missing or its checksum differs.
    """
    for name, digest in read_manifest(directory).items():
        _check(directory, name, digest)
    return sha256_file(directory / MANIFEST)


def verified(directory: Path, name: str) -> Path:
    """Returns the path of one file below `directory` after checking it against the manifest.

    Raises:
        DataError: the manifest is missing.
        CorruptFileError: the file is missing, its checksum differs, or the manifest does not list it.
    """
    _check(directory, name, read_manifest(directory).get(name))
    return directory / name


def read_manifest(directory: Path) -> dict[str, str]:
    """Reads the sha256 of each file below `directory`, by its relative path.

    Raises:
        DataError: the manifest is missing.
        CorruptFileError: the checksum differs.
    """
    try:
        manifest = read_verified_json(directory / MANIFEST, MANIFEST)
    except CorruptFileError as error:
        raise CorruptFileError(f"{directory / MANIFEST} is damaged; {_how_to_recreate(directory, MANIFEST)}") from error
    return {name: digest for name, digest in manifest.items() if name != MANIFEST}


def stage_of(path: Path) -> str:
    """The DVC stage that writes a file or folder below `data/`."""
    if path.is_relative_to(TRAIN) and path != TRAIN:
        return f"train@{path.relative_to(TRAIN).parts[0]}"
    return next((stage for stage in ("profile", "serve", "compare") if path.is_relative_to(DATA / stage)), "prepare")


def cure_of(path: Path) -> str:
    """Names the command that writes a file or folder below `data/` again; empty for another file."""
    known = path.absolute().is_relative_to(DATA.absolute())
    return f": run `dvc repro -f -s {stage_of(path)}`" if known else ""


def _check(directory: Path, name: str, digest: str | None) -> None:
    path = directory / name
    if not path.is_file():
        problem = "is missing"
    elif digest is None:
        problem = f"is not listed in {MANIFEST}"
    elif sha256_file(path) != digest:
        problem = "is damaged (its sha256 differs)"
    else:
        return
    raise CorruptFileError(f"{path} {problem}; {_how_to_recreate(directory, name)}")


def _how_to_recreate(directory: Path, name: str) -> str:
    # `dvc repro` alone would keep a damaged object in DVC's cache: DVC does not check objects that it already has.
    recreate = f"recreate it with `dvc repro -f -s {stage_of(directory)}`"
    damaged = dvc_cache.damaged_copy(original_root(), directory, name)
    return f"remove {damaged}, the damaged copy in DVC's cache, and {recreate}" if damaged else recreate


def _checksums(directory: Path) -> dict[str, str]:
    files = sorted(path for path in directory.rglob("*") if path.is_file() and path.name != MANIFEST)
    return {path.relative_to(directory).as_posix(): sha256_file(path) for path in files}


def _flush_to_disk(path: Path) -> None:
    with path.open("rb") as stream:
        os.fsync(stream.fileno())
