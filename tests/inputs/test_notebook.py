"""The Python of notebooks."""

from __future__ import annotations

import json

import pytest

from halfstep.inputs import notebook


def code(*cells: str) -> str:
    written = {"cells": [{"cell_type": "code", "source": cell} for cell in cells], "metadata": {}}
    return notebook.code_of(json.dumps(written).encode(), "n.ipynb").decode()


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        ("x = 1\ny = (4\n     % 3)", "x = 1\ny = (4\n     % 3)"),  # no magic
        ("%matplotlib inline\nx = 1", "pass  # %matplotlib inline\nx = 1"),
        ("if True:\n    !ls\nx = 1", "if True:\n    pass  # !ls\nx = 1"),
        ("!pip install \\\n  a \\\n  b\nx = 1", "pass  # !pip install\n# a\n# b\nx = 1"),
        ("keras.Model?\nx = 1", "pass  # keras.Model?\nx = 1"),
        ("%%time\nx = 1", "pass  # %%time\nx = 1"),
        ("%time x = 1", "x = 1"),
        ("%%bash\nls -l\necho", "# %%bash\n# ls -l\n# echo"),
    ],
)
def test_lines_for_ipython_do_nothing(cell: str, expected: str) -> None:
    lines = [line.rstrip() for line in code(cell).split("# cell 1\n")[1].splitlines()]
    assert lines == expected.splitlines()


def test_cells_are_one_module() -> None:
    values: dict[str, object] = {}
    exec(code("a = 2", "", "%%html\n<b>", "b = a + 1\ndisplay(b)\nget_ipython()"), values)
    assert values["b"] == 3


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "n.ipynb is not a notebook of version 4"),
        ("[]", "n.ipynb is not a notebook of version 4"),
        ('{"worksheets": []}', "n.ipynb is not a notebook of version 4"),
        ('{"cells": [{"cell_type": "code"}]}', "n.ipynb is not a notebook of version 4"),
        ('{"cells": [], "metadata": {"kernelspec": {"language": "julia"}}}', "n.ipynb is a notebook in julia"),
    ],
)
def test_what_is_no_notebook_of_python_is_one_line(content: str, message: str) -> None:
    with pytest.raises(SyntaxError, match=message):
        notebook.code_of(content.encode(), "n.ipynb")
