"""Another Python interpreter, for variants and tasks that name one."""

from __future__ import annotations

import site
import venv
from pathlib import Path

from tests.system.test_elsewhere import ABSENT


def other_interpreter(folder: Path) -> Path:
    """An interpreter of another environment, which has TensorFlow and none of the packages of halfstep's own."""
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    for entry in Path(site.getsitepackages()[0]).iterdir():
        name = entry.name.partition(".")[0].partition("-")[0]
        if name not in ABSENT and entry.suffix != ".pth" and not name.startswith("__editable__"):
            (packages / entry.name).symlink_to(entry)
    return folder / "bin" / "python"
