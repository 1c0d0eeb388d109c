"""`python -m halfstep report FILE` renders a `comparison.json` again, also without the files of its study."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from halfstep import files
from halfstep.cli import cli_entry
from halfstep.compare.report.html import render_report
from halfstep.compare.report.markdown import render_markdown
from halfstep.compare.report.terminal import render
from halfstep.compare.study import Study, load_study
from halfstep.errors import HalfstepError
from halfstep.results.comparison import COMPARISON, Comparison
from halfstep.terminal import wide_console


@cli_entry
def main() -> None:
    """Prints the terminal's text, and writes the page with `--html`."""
    parser = argparse.ArgumentParser(prog="halfstep report", description=__doc__)
    parser.add_argument("file", type=Path, nargs="?", default=COMPARISON, help="a comparison.json")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print it as JSON of the present schema")
    form.add_argument("--markdown", action="store_true", help="print it as Markdown, for a comment on a pull request")
    parser.add_argument("--html", type=Path, metavar="PATH", help="where to write the page")
    arguments = parser.parse_args()
    comparison = Comparison.read(arguments.file)
    if arguments.json:
        print(json.dumps(comparison.as_json(), indent=2))
    elif arguments.markdown:
        print(render_markdown(comparison), end="")
    else:
        wide_console().print(render(comparison))
    if arguments.html is not None:
        study = study_of(comparison, arguments.file)
        files.write_text(arguments.html, render_report(comparison, study))


def study_of(comparison: Comparison, file: Path) -> Study | None:
    """The study that a comparison was made from; None unless it is in the working folder, as it was then."""
    setup = comparison.setup
    if setup is None or file.resolve() != COMPARISON.resolve() or not _is_unchanged(setup.manifests):
        return None
    variants = [comparison.baseline, *comparison.candidates]
    try:
        return load_study(comparison.baseline, variants, setup.seeds, setup.inference_batch_sizes)
    except HalfstepError:  # a file of it is damaged or missing
        return None


def _is_unchanged(manifests: dict[str, str]) -> bool:
    paths = {Path(folder) / files.MANIFEST: digest for folder, digest in manifests.items()}
    return all(path.is_file() and files.sha256_file(path) == digest for path, digest in paths.items())


if __name__ == "__main__":
    raise SystemExit(main())
