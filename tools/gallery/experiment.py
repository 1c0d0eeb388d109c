"""An experiment of DVC in a temporary copy of the workspace, which stays as it is."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress

from halfstep.errors import CommandError
from halfstep.results.comparison import COMPARISON, Comparison
from halfstep.system.commands import dvc
from tools.gallery.results import GalleryError


def run(name: str, overrides: Iterable[str]) -> None:
    """Runs the pipeline with other parameters, as an experiment of this name; an earlier one is replaced.

    Raises:
        GalleryError: the experiment failed; it says so above.
    """
    with suppress(CommandError):  # there is none
        dvc("exp", "remove", name)
    command = ["exp", "run", "--temp", "--name", name, *(f"--set-param={text}" for text in overrides)]
    if subprocess.run([sys.executable, "-m", "dvc", *command], check=False).returncode:
        raise GalleryError(f"the experiment {name} failed, as shown above; the workspace is as before")


def comparison_of(name: str) -> Comparison:
    """The comparison of an experiment, from DVC's cache.

    Raises:
        GalleryError: it is not there.
    """
    import dvc.api  # takes a second

    try:
        content = dvc.api.read(COMPARISON.as_posix(), repo=".", rev=name)
        return Comparison.of(json.loads(content), COMPARISON)
    except Exception as error:  # of DVC, git or the file
        raise GalleryError(f"the results of the experiment {name} cannot be read: {error}") from error
