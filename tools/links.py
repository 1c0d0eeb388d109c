"""`python -m tools.links [WHEEL]`: names the links of all pages, or of a built wheel's README, that lead nowhere.

Targets in the repository are looked for in this folder, anchors among the headings, written as GitHub writes them.
Other addresses are not visited. Ends with 1 if a link leads nowhere.
"""

from __future__ import annotations

import re
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from email.parser import Parser
from pathlib import Path
from subprocess import check_output

_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#+ +(.*)$", re.MULTILINE)


def broken(page: Path, text: str, root: Path) -> Iterator[str]:
    """Yields the targets of a page that do not exist.

    Args:
        page: to whose folder the targets are relative.
        text: of the page, in Markdown.
        root: of the repository, which no target may leave.
    """
    for target in _LINK.findall(_CODE.sub("", text)):
        name, _, anchor = target.partition("#")
        if re.match("[a-z]+:", target):
            continue
        path = (page.parent / name).resolve() if name else page.resolve()
        is_there = path.is_relative_to(root.resolve()) and path.exists()
        has_anchors = anchor and path.suffix == ".md"
        if not is_there or (has_anchors and anchor not in anchors(path.read_text(encoding="utf-8"))):
            yield target


def anchors(text: str) -> set[str]:
    """Those of a page's headings; of equal headings the second has `-1` at its end."""
    found: dict[str, int] = {}
    for heading in _HEADING.findall(re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)):
        slug = re.sub(r"[^\w\- ]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()).replace(" ", "-")
        found[slug] = found.get(slug, -1) + 1
    return {slug if number == 0 else f"{slug}-{number}" for slug, last in found.items() for number in range(last + 1)}


def of_wheel(wheel: Path, root: Path) -> Iterator[str]:
    """Yields the links of a wheel's README that are relative, or lead to a file that the repository lacks."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = Parser().parsestr(archive.read(name).decode())
    text = metadata.get_payload()
    assert isinstance(text, str)
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    url = project["tool"]["hatch"]["metadata"]["hooks"]["custom"]["repository"]
    local = re.sub(rf"{re.escape(url)}/(?:blob|raw|tree)/v[^/]+/", "", text)
    yield from broken(root / "README.md", local, root)
    yield from (target for target in _LINK.findall(_CODE.sub("", text)) if not re.match("[a-z]+:|#", target))


def main() -> None:
    """Entry point."""
    root = Path.cwd()
    if sys.argv[1:]:
        found = {argument: [*of_wheel(Path(argument), root)] for argument in sys.argv[1:]}
    else:
        names = check_output(["git", "ls-files", "*.md"], text=True).splitlines()
        found = {name: [*broken(root / name, (root / name).read_text(encoding="utf-8"), root)] for name in names}
    lines = [f"{name}: {target} leads nowhere" for name, targets in found.items() for target in targets]
    print("\n".join(lines) or f"links: {len(found)} pages, all lead somewhere")
    sys.exit(bool(lines))


if __name__ == "__main__":
    main()
