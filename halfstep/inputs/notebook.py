"""The Python of a Jupyter notebook: its code cells, one after the other."""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Iterator

SUFFIX = ".ipynb"
# What IPython defines in a notebook.
_HEADER = "display = print\n\n\ndef get_ipython():\n    return None\n\n\n"
_CELL_MAGICS_OF_PYTHON = ("%%time", "%%timeit", "%%capture", "%%prun")  # the rest of the cell is Python
_NO_PYTHON = ("%", "!", "?")  # how a line begins that IPython reads itself
_TIMED = re.compile(r"(?P<indent>\s*)%(?:time|prun)\s+(?P<code>[^-\s].*)")  # a statement that is run and timed


def code_of(content: bytes, name: str) -> bytes:
    """The code cells as a module.

    Lines for IPython (magics, commands of the shell, questions) do nothing; so do cells in another language.

    Args:
        content: of the notebook's file.
        name: what the error calls it.

    Raises:
        SyntaxError: it is not a notebook, or one whose language is not Python.
    """
    try:
        notebook = json.loads(content)
        language = notebook.get("metadata", {}).get("kernelspec", {}).get("language", "python")
        cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SyntaxError(f"{name} is not a notebook of version 4") from error
    if language != "python":
        raise SyntaxError(f"{name} is a notebook in {language}")
    parts = (f"# cell {number}\n{_python(cell)}\n" for number, cell in enumerate(cells, start=1))
    return (_HEADER + "\n".join(parts)).encode()


def _python(cell: str) -> str:
    if _is_python(cell):
        return cell
    lines = cell.splitlines()
    first = next((line for line in lines if line.strip()), "")
    if first.startswith("%%") and not first.startswith(_CELL_MAGICS_OF_PYTHON):
        return "\n".join(f"# {line}" for line in lines)
    return "\n".join(_lines(lines))


def _is_python(cell: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(cell)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _lines(lines: list[str]) -> Iterator[str]:
    continues = False  # a line that Python does not read, by a backslash
    for line in lines:
        text = line.lstrip()
        if not continues and (timed := _TIMED.fullmatch(line)):
            yield timed["indent"] + timed["code"]
        elif continues or text.startswith(_NO_PYTHON) or text.endswith("?"):
            code = "" if continues else f"{line[: len(line) - len(text)]}pass  "  # a block needs a statement
            continues = text.endswith("\\")
            yield f"{code}# {text}".rstrip("\\")
        else:
            yield line
