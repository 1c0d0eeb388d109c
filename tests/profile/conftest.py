"""What tests of real workers share."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from halfstep.system import files


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, prepared_template: Path) -> Iterator[Path]:
    """The working folder of a module's tests, with prepared images."""
    folder, before = tmp_path_factory.mktemp("profile"), Path.cwd()
    shutil.copytree(prepared_template, folder / files.PREPARED)
    os.chdir(folder)
    yield folder
    os.chdir(before)
