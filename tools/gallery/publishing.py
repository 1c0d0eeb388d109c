"""Writes the page and the picture, and makes the results of this machine ready for a pull request."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from halfstep.system import files
from tools.gallery import page, results
from tools.gallery.merging import by_machine
from tools.gallery.results import GalleryError, Results
from tools.gallery.studies import MEASURED, PUBLISHED, Study, read_results

DOCS, README = Path("docs"), Path("README.md")
PAGE = "gallery.md"


def show(studies: Mapping[str, Study], folder: Path) -> None:
    """Writes the page and the picture of all results into a folder, and says how often intervals held."""
    all_results = read_results(studies, MEASURED, PUBLISHED)
    _write(all_results, studies, folder)
    for each in by_machine(all_results, list(studies)).values():
        for name, occasions in ((name, some) for name, some in each.items() if len(some) > 1):
            for title, measure, width, spread, held, expected in page.held_cells(occasions, name):
                print(
                    f"gallery: {title}, {measure}: intervals {width}, spread {spread}; {held} hold the mean of the "
                    f"others, {expected} expected"
                )
    print(f"gallery: {folder / PAGE} has {len(all_results.shown)} results")


def _write(all_results: Results, studies: Mapping[str, Study], folder: Path) -> None:
    machines = by_machine(all_results, list(studies))
    for line in all_results.left_out:
        print(f"gallery: {line}", file=sys.stderr)
    files.write_text(folder / PAGE, page.render(all_results, studies))
    if machines:
        from tools.gallery.picture import svg  # takes a second

        files.write_text(folder / page.PICTURE, svg(machines, studies))


def write_page(studies: Mapping[str, Study]) -> None:
    """Writes the page of the documentation and the rows of the README: the results that the repository has."""
    published = read_results(studies, PUBLISHED)
    _write(published, studies, DOCS)
    if README.is_file():
        text = README.read_text(encoding="utf-8")
        files.write_text(README, page.between_markers(text, page.readme_rows(published, studies)))


def add(studies: Mapping[str, Study]) -> None:
    """Copies the results of this machine to those of the repository, and writes the page of its documentation.

    Raises:
        GalleryError: there is none, or one is of code that nobody else has.
    """
    here = results.machine_id(results.environment())
    measured = [one for one in read_results(studies, MEASURED).shown if one.machine == here]
    if not measured:
        raise GalleryError(f"there is no result of this machine in {MEASURED}: run `{page.COMMAND}` first")
    if dirty := [one.place.as_posix() for one in measured if one.dirty]:
        raise GalleryError(
            f"{dirty[0]} was measured with edits that are in no commit, so nobody can measure the same: commit or "
            "restore them, remove the file, and measure again"
        )
    for one in measured:
        one.write(PUBLISHED / one.place)
    write_page(studies)
    print(
        f"gallery: {len(measured)} results are in {PUBLISHED / here}; commit that folder, {README}, {DOCS / PAGE} "
        f"and {DOCS / page.PICTURE}, and open a pull request"
    )
