"""`python -m stages.search VARIANT`: finds the fewest layers in float32 with which a mixed policy is worth having."""

from __future__ import annotations

import argparse
import hashlib
import json

from stages import files, params
from stages.cli import cli_entry
from stages.errors import SearchError
from stages.inputs import digests
from stages.locking import stage_lock
from stages.machine import fingerprint
from stages.params import Params
from stages.params.rules import did_you_mean
from stages.params.writing import add_variant
from stages.prepare.trials import servers
from stages.results.search import Search
from stages.results.task import resolved
from stages.search.deadline import Deadline
from stages.search.needed import TRYING
from stages.search.printing import print_search
from stages.search.searching import Searching

FOLDER = files.WORK_DIR / "search"
MINUTES = 15.0


@cli_entry
def main() -> None:
    """Entry point.

    Raises:
        SearchError: the variant cannot be searched, or a training cannot be run.
        DataError: `dvc repro` has not run.
    """
    parser = argparse.ArgumentParser(prog="python -m stages.search", description=__doc__)
    parser.add_argument("variant", metavar="VARIANT", help="of train.variants, with a mixed policy")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="starts nothing after that (default: 15)")
    arguments = parser.parse_args()
    settings = resolved(params.load())
    _require_searchable(settings, arguments.variant)
    with stage_lock("search"):
        found = _searched(settings, arguments.variant, Deadline(arguments.minutes))
    print(flush=True)
    print_search(found, settings.compare.baseline)
    if found.new_variant and found.entry:
        add_variant(found.new_variant, found.entry)
        print(
            f"params.yaml: variants.{found.new_variant} was added, and to train.variants; `dvc repro` trains and "
            "measures it anew, and gives the verdict."
        )


def _require_searchable(settings: Params, variant: str) -> None:
    listed = settings.train.variants
    if variant not in listed:
        raise SearchError(f"'{variant}' is not in train.variants ({', '.join(listed)}){did_you_mean(variant, listed)}")
    if variant == settings.compare.baseline:
        raise SearchError(f"'{variant}' is compare.baseline; search one of the others")
    if not settings.variants[variant].policy.startswith("mixed_"):
        raise SearchError(
            f"variants.{variant}.policy is {settings.variants[variant].policy}; only a mixed policy keeps some layers "
            "in float32"
        )


def _searched(settings: Params, variant: str, deadline: Deadline) -> Search:
    path = files.original_root() / FOLDER / f"{variant}.json"
    searching = Searching(settings, variant, deadline, path, _key(settings, variant))
    if not searching.is_finished:
        with servers(TRYING, [settings.variants[variant]]):
            searching.search()
    return searching.kept


def _key(settings: Params, variant: str) -> str:
    """Identifies all that decides the outcome."""
    parts = {
        **settings.model_dump(mode="json", include={"task", "data", "model", "compare"}),
        "train": settings.train.model_dump(mode="json", exclude={"variants"}),
        "entries": [settings.variants[name].model_dump(mode="json") for name in (settings.compare.baseline, variant)],
        "machine": fingerprint.read(),
        "code": digests.code_digest("profile"),
        "data_sha256": files.verify_manifest(files.PREPARED),
        "profile": files.sha256_file(files.profile_dir(variant) / files.MANIFEST)
        if (files.profile_dir(variant) / files.MANIFEST).is_file()
        else None,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


if __name__ == "__main__":
    raise SystemExit(main())
