"""Runs a command to which some folders are overlays: what it changes there, by whatever program, is thrown away.

The kernel does that without root where it lets users make namespaces. What `sealing` puts back for each process is kept
back here for the whole command, with what `sealing` cannot see. Imports the standard library alone.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from halfstep.system.supervision import die_with_parent

_NEW_MOUNTS, _NEW_USER = 0x00020000, 0x10000000  # <linux/sched.h>
_BIND, _RECURSIVE, _PRIVATE = 4096, 16384, 1 << 18  # <linux/mount.h>
_DETACH = 2
_SCRATCH = "scratch"  # beside what is written
_libc = ctypes.CDLL(None, use_errno=True)


def command_of(covered: Sequence[str], shown: Sequence[str], caches: Mapping[str, str], layers: Path) -> list[str]:
    """What to put before a command, the first word of which is an absolute path.

    Args:
        covered: folders that stay as they are. None contains another.
        shown: folders in them that the command changes.
        caches: folders that stay as they are, each with one that keeps what the command adds, from run to run.
        layers: a folder outside of `covered`, for what is written meanwhile.
    """
    for folder in (layers, *map(Path, caches.values())):
        folder.mkdir(parents=True, exist_ok=True)
    call = {"covered": covered, "shown": shown, "caches": caches, "layers": str(layers)}
    return [sys.executable, "-m", __name__, json.dumps(call)]


def written(covered: Sequence[str], layers: Path) -> Iterator[tuple[str, Path | None]]:
    """Files that the command has changed: their paths, and where the new content is; None if it removed them."""
    for folder, upper in zip(covered, _uppers(layers, len(covered)), strict=True):
        for place, folders, names in os.walk(upper):
            folders[:] = [name for name in folders if name not in (".git", "__pycache__")]
            for name in names:
                new = Path(place, name)
                old = Path(folder, new.relative_to(upper))
                info = new.lstat()
                if stat.S_ISCHR(info.st_mode) and info.st_rdev == 0:  # how an overlay says that it was removed
                    yield str(old), None
                elif not old.exists() or _marks(info) != _marks(old.lstat()):
                    yield str(old), new


def remove(layers: Path) -> None:
    """Removes what was written, also by a command that was killed."""
    for used in layers.glob(f"*/{_SCRATCH}/work"):  # by the kernel: nobody may read it
        used.chmod(0o700)
    shutil.rmtree(layers, ignore_errors=True)


def _marks(info: os.stat_result) -> tuple[int, int]:
    return info.st_size, info.st_mtime_ns


def _uppers(layers: Path, n: int) -> list[Path]:
    return [layers / str(i) / "upper" for i in range(n)]


def _enter(covered: list[str], shown: list[str], caches: dict[str, str], layers: str) -> None:
    """Raises `OSError` where the kernel refuses; then all is as before."""
    user, group = os.getuid(), os.getgid()
    if _libc.unshare(_NEW_MOUNTS) != 0:  # not root
        _check(_libc.unshare(_NEW_MOUNTS | _NEW_USER))
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    _mount("none", "/", flags=_RECURSIVE | _PRIVATE)
    opened = {path: os.open(path, os.O_PATH) for path in (*shown, *filter(os.path.isdir, caches), *caches.values())}
    done = list[str]()
    try:
        for folder, upper in zip(covered, _uppers(Path(layers), len(covered)), strict=True):
            _overlay(folder, folder, upper)
            done.append(folder)
        for path in shown:
            _mount(f"/proc/self/fd/{opened[path]}", path, flags=_BIND | _RECURSIVE)
            done.append(path)
        for path, kept in caches.items():
            upper = Path(f"/proc/self/fd/{opened[kept]}/upper")
            if path in opened:
                _overlay(f"/proc/self/fd/{opened[path]}", path, upper)
            elif any(Path(path).is_relative_to(folder) for folder in covered):
                for place in (Path(path), upper):
                    place.mkdir(parents=True, exist_ok=True)
                _mount(str(upper), path, flags=_BIND)
            else:
                continue
            done.append(path)
    except OSError:
        for path in reversed(done):
            _libc.umount2(path.encode(), _DETACH)
        raise


def _overlay(lower: str, place: str, upper: Path) -> None:
    scratch = upper.with_name(_SCRATCH)
    for folder in (upper, scratch):
        folder.mkdir(parents=True, exist_ok=True)
    parts = {"lowerdir": lower, "upperdir": str(upper), "workdir": str(scratch)}
    options = [f"{key}={_escaped(value)}" for key, value in parts.items()]
    _mount("overlay", place, "overlay", ",".join([*options, "userxattr"]))


def _escaped(path: str) -> str:
    return path.replace("\\", "\\\\").replace(":", "\\:").replace(",", "\\,")


def _mount(source: str, target: str, kind: str | None = None, options: str | None = None, *, flags: int = 0) -> None:
    names = (source.encode(), target.encode(), kind and kind.encode())
    _check(_libc.mount(*names, ctypes.c_ulong(flags), options and options.encode()))


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _main() -> None:
    try:
        _enter(**json.loads(sys.argv[1]))
    except OSError as error:
        print(
            f"judge: no overlays here ({error.strerror}): what other programs write that your code starts stays",
            file=sys.stderr,
        )
    die_with_parent(signal.SIGTERM)  # a new user forgets it
    os.execv(sys.argv[2], sys.argv[2:])  # noqa: S606


if __name__ == "__main__":
    _main()
