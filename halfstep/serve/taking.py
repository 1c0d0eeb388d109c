"""The folders that people take away: the file, how it is loaded and called, and the program that times it."""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path

import jinja2

from halfstep.results.serving import Served, ServedArm
from halfstep.results.task import TASK_INFO, TaskInfo
from halfstep.serve import bench
from halfstep.words.formats import FORMATS

README = "README.md"


def write_folders(served: Served, folder: Path) -> None:
    """Writes into the folder of each format what people need beside the file.

    Args:
        served: with the exports and the arms.
        folder: to which the paths of the exports are relative.
    """
    task = TaskInfo.read(TASK_INFO)
    for name, exports in served.by_format.items():
        item = exports[0]
        if item.file is None or FORMATS[name].file_of is not None:
            continue
        path = folder / item.file
        of_file = [arm for arm in served.arms if name in (arm.format, FORMATS[arm.format].file_of)]
        values = {"item": item, "file": path.name, "served": served, "is_of_images": task.has_classes}
        names, arms = [one.name for one in served.inputs], of_file or [ServedArm(format=name)]
        (path.parent / README).write_text(_template().render(**values, names=names, arms=arms))
        shutil.copyfile(bench.__file__, path.parent / "bench.py")


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("halfstep.serve", "templates"),
        autoescape=False,  # noqa: S701  it is Markdown
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {"formats": FORMATS, "types": bench.OPENVINO_TYPES}
    return environment.get_template(f"{README}.j2")
