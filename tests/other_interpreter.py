"""Another Python interpreter, for variants that name one."""

from __future__ import annotations

import site
import venv
from pathlib import Path

from halfstep.system import interpreters


def other_interpreter(folder: Path) -> Path:
    """An interpreter of another environment, which has TensorFlow and none of the packages that are lent."""
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    for entry in Path(site.getsitepackages()[0]).iterdir():
        name = entry.name.partition(".")[0].partition("-")[0]
        is_lent = name in interpreters._LENT or name in interpreters._OF_TRAININGS
        if not is_lent and entry.suffix != ".pth" and not name.startswith("__editable__"):
            (packages / entry.name).symlink_to(entry)
    return folder / "bin" / "python"
