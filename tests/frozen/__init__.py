"""Nine small studies as a release made them, and what it said of them: their numbers and sentences stay.

`NAME.tar.xz` is `data/` without traces and models. Beside it are `NAME.json`, its `comparison.json`, and
`NAME.txt`, the texts of the terminal, the page and the Markdown. `python -m tests.frozen.make` made them;
`h100` is two repeats of the default on an NVIDIA H100 (TensorFlow 2.21.0, XLA by Keras), and `h100_resnet50` three of
ResNet-50 there (digits at 224 px, batch 64, without XLA); `h200` is two repeats of the default with its formats by
`dvc repro` on an NVIDIA H200, killed in its third repeat and gone on with. All three without the path of CUDA.
"""

from __future__ import annotations

import io
import tarfile
from html.parser import HTMLParser
from pathlib import Path

FOLDER = Path(__file__).parent
COLUMNS = 200  # of the terminal
_BLOCKS = frozenset({"p", "h1", "h2", "h3", "li", "tr", "dt", "dd", "div", "section", "article", "header", "footer"})


class _Text(HTMLParser):
    """The text of a page, a line for each block."""

    def __init__(self) -> None:
        super().__init__()
        self.lines = [""]
        self._hidden = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._hidden += tag in ("style", "svg")
        self._break(tag)

    def handle_endtag(self, tag: str) -> None:
        self._hidden -= tag in ("style", "svg")
        self._break(tag)

    def _break(self, tag: str) -> None:
        if tag in _BLOCKS and self.lines[-1]:
            self.lines.append("")

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.lines[-1] = " ".join(f"{self.lines[-1]} {data}".split())


def text_of_page(html: str) -> str:
    """What a page shows, a line for each block."""
    parser = _Text()
    parser.feed(html)
    return "\n".join(line for line in parser.lines if line) + "\n"


def pack(data: Path, archive: Path) -> None:
    """Packs a folder so that equal contents give equal files."""

    def plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.mtime = info.uid = info.gid = 0
        info.uname = info.gname = ""
        return info

    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:xz") as tar:
        for path in sorted(path for path in data.rglob("*") if path.is_file()):
            tar.add(path, arcname=path.relative_to(data.parent).as_posix(), filter=plain)
    archive.write_bytes(content.getvalue())


def unpack(name: str, folder: Path) -> None:
    """Writes `data/` of a study into a folder."""
    with tarfile.open(FOLDER / f"{name}.tar.xz") as tar:
        tar.extractall(folder, filter="data")
