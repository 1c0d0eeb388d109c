"""Measures the studies of `gallery/studies.yaml` that this machine has no result of, and renders the page of all.

    python -m tools.gallery                          what is missing or out of date here, the shortest first
    python -m tools.gallery --minutes 70             starts nothing that is not expected to end within them
    python -m tools.gallery --study cnn              one study
    python -m tools.gallery --occasion again         measures again under another name; both are kept
    python -m tools.gallery --occasion busy --load 0.5   while another program takes half of a core
    python -m tools.gallery --add                    measures nothing: makes the results of this machine ready for a
                                                     pull request
    python -m tools.gallery --page                   measures nothing: writes docs/gallery.md of what is published

Each study is an experiment of DVC in a temporary copy of the workspace: `dvc exp show` lists it. A run that was killed
goes on at the next start.
"""

from __future__ import annotations

import argparse

from halfstep.cli import cli_entry
from halfstep.system.locking import stage_lock
from tools.gallery import publishing, results, running, studies
from tools.gallery.results import GalleryError
from tools.gallery.studies import MEASURED, Study, read_results


@cli_entry
def main() -> None:
    """Entry point.

    Raises:
        GalleryError: an argument or a file cannot be used; or studies failed, after the others were measured.
    """
    arguments = _arguments()
    known = studies.read()
    wanted = studies.chosen(known, arguments.study)
    if arguments.minutes is not None and not arguments.minutes > 0:
        raise GalleryError(f"--minutes {arguments.minutes}: it must be a positive number")
    if arguments.load is not None and not (0 < arguments.load <= 1 and arguments.occasion):
        raise GalleryError(
            f"--load {arguments.load}: it must be above 0 and at most 1, the share of a core that another program "
            "takes, together with --occasion"
        )
    if arguments.add or arguments.page:
        publishing.add(known) if arguments.add else publishing.write_page(known)
        return
    failed = _measure(known, wanted, arguments)
    publishing.show(known, MEASURED)
    if failed:
        raise GalleryError(
            f"{len(failed)} of {len(wanted)} studies failed, as shown above: {', '.join(failed)}; the same command "
            "tries them again"
        )


def _measure(known: dict[str, Study], wanted: list[Study], arguments: argparse.Namespace) -> list[str]:
    machine, occasion = results.environment(), running.occasion_of(arguments.occasion)
    here = read_results(known, MEASURED)  # what is published may be of another machine of the same kind
    planned = running.missing(wanted, here, machine, arguments.occasion)
    if not planned:
        print("gallery: all of it has been measured here; --occasion WORD measures it again")
    with stage_lock("gallery"):
        failed = running.measure(planned, machine, occasion, arguments.minutes, arguments.load)
    running.ended()
    return failed


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tools.gallery", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--study", nargs="+", default=[], metavar="NAME", help="only these studies")
    parser.add_argument("--minutes", type=float, help="starts no study that is not expected to end within them")
    parser.add_argument("--occasion", metavar="WORD", help="names the measurement; default: the day")
    parser.add_argument("--load", type=float, metavar="SHARE", help="of one core, taken by another program meanwhile")
    parser.add_argument("--add", action="store_true", help="makes the results of this machine ready for a pull request")
    parser.add_argument("--page", action="store_true", help="writes docs/gallery.md anew of gallery/results")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
