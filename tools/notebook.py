"""`python -m tools.notebook`: runs docs/notebook.ipynb in a folder of its own, and keeps what its cells show."""

from __future__ import annotations

import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

PAGE = Path("docs/notebook.ipynb")
_TIMEOUT_S = 900


def executed(notebook: nbformat.NotebookNode, folder: Path) -> nbformat.NotebookNode:
    """Runs all cells in a folder, each with lines of its output joined, and without when and how long it ran.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell failed.
    """
    client = NotebookClient(
        notebook, timeout=_TIMEOUT_S, resources={"metadata": {"path": str(folder)}}, record_timing=False
    )
    client.coalesce_streams = True
    return client.execute()


def main() -> None:
    """Writes the page."""
    with tempfile.TemporaryDirectory() as folder:
        page = executed(nbformat.read(PAGE, 4), Path(folder))
    for cell in page.cells:
        if cell.cell_type == "code":  # without TensorFlow's lines about the processor
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    nbformat.write(page, PAGE)


if __name__ == "__main__":
    main()
