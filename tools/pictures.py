"""Makes docs/report*.png and docs/mlflow-compare.png of the results in data/.

python -m tools.pictures     after `dvc repro`, with Chromium and pdftoppm (Debian's packages chromium and
                               poppler-utils)

Each picture says in its text `templates` of which page it is: a test fails where the page has changed since.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from urllib.parse import quote

from mlflow import MlflowClient
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from halfstep.errors import HalfstepError
from halfstep.params import loading
from halfstep.system import files
from halfstep.tracking import store

DOCS = Path("docs")
PAGES = {
    "report": (1280, 900),
    "report-phone": (390, 844),
    "report-dark": (1280, 900),
    "report-forced-colors": (1280, 900),
    "report-paper": (816, 1056),
}
_OPTIONS = {
    "report-dark": ["--blink-settings=preferredColorScheme=0"],
    "report-forced-colors": ["--force-high-contrast", "--enable-features=ForcedColors"],
}
COMPARE = ("mlflow-compare", (1280, 1000))
_TEMPLATES = Path("halfstep/compare/report/templates")
_RENDERING_MS = 30_000  # that MLflow's page may take


def digest(root: Path) -> str:
    """Of the templates of the report's page."""
    content = b"".join(path.read_bytes() for path in sorted((root / _TEMPLATES).iterdir()))
    return hashlib.sha256(content).hexdigest()[:16]


def main() -> None:
    """Makes all pictures."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None or shutil.which("pdftoppm") is None:
        raise SystemExit("tools.pictures: a program is missing: apt install chromium poppler-utils")
    report = files.REPORT.resolve().as_uri()
    for name, size in PAGES.items():
        _picture(browser, report, name, size)
    command = [sys.executable, "-m", "halfstep", "ui", "--port", "5055"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        try:
            assert server.stdout is not None
            first = next(server.stdout)
            next(line for line in server.stdout if "startup complete" in line)
            _picture(browser, _compared(first.split("/#/")[0]), *COMPARE)
        finally:
            server.terminate()


def _compared(server: str) -> str:
    """MLflow's page that compares the newest runs of the variants."""
    settings = loading.load()
    client = MlflowClient(store.resolve_uri(settings.tracking))
    experiment = client.get_experiment_by_name(settings.tracking.experiment)
    if experiment is None:
        raise HalfstepError("tools.pictures: MLflow has no run yet: run `dvc repro` first")
    newest = {run.info.run_name: run.info.run_id for run in reversed(client.search_runs([experiment.experiment_id]))}
    runs = [newest[name] for name in settings.train.variants]
    experiments = quote(json.dumps([experiment.experiment_id]))
    return f"{server}/#/compare-runs?runs={quote(json.dumps(runs))}&experiments={experiments}"


def _picture(browser: str, address: str, name: str, size: tuple[int, int]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "page.png"
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={folder}/user"]
        options += _OPTIONS.get(name, [])
        options += [f"--window-size={size[0]},{size[1]}"]
        if address.startswith("http"):
            options.append(f"--virtual-time-budget={_RENDERING_MS}")
        if name == "report-paper":
            printed = ["--no-pdf-header-footer", f"--print-to-pdf={folder}/page.pdf"]
            subprocess.run([browser, *options, *printed, address], check=True, stderr=subprocess.DEVNULL)
            to_picture = ["pdftoppm", "-png", "-singlefile", "-r", "96", f"{folder}/page.pdf", f"{folder}/page"]
            subprocess.run(to_picture, check=True)
        else:
            subprocess.run([browser, *options, f"--screenshot={path}", address], check=True, stderr=subprocess.DEVNULL)
        text = PngInfo()
        text.add_text("templates", digest(Path()))
        with Image.open(path) as image:
            image.convert("P", palette=Image.Palette.ADAPTIVE).save(DOCS / f"{name}.png", pnginfo=text, optimize=True)
        print(f"{DOCS / name}.png: {(DOCS / f'{name}.png').stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
