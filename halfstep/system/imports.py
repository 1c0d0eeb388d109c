"""How Python finds and imports modules: without its garbage collector, and in child processes as in this one.

An import makes hundreds of thousands of objects that stay. The collector would look at them again and again: that is a
third of the time in which TensorFlow and MLflow are imported, and a second at the end of the process.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]  # of the clone; where a wheel is installed, the folder of all packages
_TEMPLATE = Path(__file__).parents[1] / "template"  # in a wheel alone


def template(name: str | Path) -> Path:
    """A file or folder of the pipeline, such as `dvc.yaml`: of the clone, or in a wheel of halfstep."""
    return (_TEMPLATE if _TEMPLATE.is_dir() else ROOT) / name


def stages_package() -> str:
    """The package of the stages' pages."""
    return "halfstep.stages" if _TEMPLATE.is_dir() else "stages"


@contextmanager
def quick_imports() -> Iterator[None]:
    """In the block, the garbage collector does not run. Afterwards it ignores every object that exists by then.

    For imports alone: a model or an array in a cycle of references that exists by then would never be freed.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.freeze()
            gc.enable()


def search_path() -> dict[str, str]:
    """The environment variable with which a child process finds `halfstep` and `stages` in any working folder."""
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))}
