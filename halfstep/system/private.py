"""A folder of this user alone, for locks and sockets. Imports the standard library alone."""

from __future__ import annotations

import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from halfstep.errors import ProfileError

# Not TMPDIR or XDG_RUNTIME_DIR: jobs set them. Not /run/user: it exists only while the user is logged in.
_TEMPORARY_FOLDERS = (Path("/tmp"), Path("/var/tmp"), Path("/dev/shm"))  # noqa: S108  only names are shared


def private_folder() -> Path:
    """A folder of this user with a short path, which no environment variable changes. It is created if missing.

    Raises:
        ProfileError: it cannot be created, or it is not a folder that only this user can open.
    """
    usable = [folder for folder in _TEMPORARY_FOLDERS if os.access(folder, os.W_OK | os.X_OK)]
    places = [folder / f"halfstep-{os.getuid()}" for folder in usable or [Path(tempfile.gettempdir())]]
    folder = next((place for place in places if not _is_of_another(place)), places[0])
    try:
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        info = folder.lstat()
    except OSError as error:
        raise ProfileError(f"profile: the folder {folder} cannot be created ({error.strerror})") from error
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid() or info.st_mode & 0o777 != 0o700:
        raise ProfileError(
            f"profile: {folder} is {stat.filemode(info.st_mode)} of user {info.st_uid}; it must be a folder that "
            f"only user {os.getuid()} can open (drwx------): remove it, or ask its owner to"
        )
    return folder


def _is_of_another(path: Path) -> bool:
    """Whether another user has made it."""
    return os.path.lexists(path) and path.lstat().st_uid != os.getuid()  # noqa: PTH  a link without a target, too
