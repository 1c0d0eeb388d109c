"""The page of `dvc plots show` without a network."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

DEFINITION = """
plots:
  - accuracy:
      template: lines_by_variant
      x: epoch
      y: {values.csv: val_accuracy}
"""


def dvc(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "dvc", *arguments], check=True, capture_output=True)


def test_page_loads_only_local_libraries(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    dvc("init", "--no-scm")
    for name in ("plots", "vega"):
        shutil.copytree(root / ".dvc" / name, tmp_path / ".dvc" / name, dirs_exist_ok=True)
    (tmp_path / "dvc.yaml").write_text(DEFINITION)
    (tmp_path / "values.csv").write_text("epoch,variant,val_accuracy\n0,float32,0.1\n1,float32,0.5\n")
    dvc("plots", "show")
    assert "https://cdn." in (tmp_path / "dvc_plots" / "index.html").read_text()

    dvc("config", "--local", "plots.html_template", "vega/page.html")
    dvc("plots", "show")
    page = (tmp_path / "dvc_plots" / "index.html").read_text()
    assert "vegaEmbed" in page
    assert re.findall(r'src="([^"]*)"', page) == [
        f"../.dvc/vega/{name}.min.js" for name in ("vega", "vega-lite", "vega-embed")
    ]
    assert set(re.findall(r"https?://[^/\"]*", page)) == {"https://vega.github.io"}  # a name, which is not loaded


def test_documented_versions_are_those_of_dvc(root: Path) -> None:
    from dvc_render.vega import VegaRenderer

    versions = re.findall(r"/npm/([a-z-]+@[0-9.]+)", VegaRenderer.SCRIPTS)
    assert len(versions) == 3
    assert f"npm pack --silent {' '.join(versions)}\n" in (root / "docs" / "layout.md").read_text()
