"""`halfstep fleet train`: trains what is missing on the nodes of a Ray cluster; see docs/fleet.md."""

from __future__ import annotations

import argparse

from halfstep.cli import cli_entry


@cli_entry
def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="halfstep fleet", description=__doc__)
    parser.add_argument("what", choices=["train"], help="`dvc repro --pull` brings the results home")
    parser.parse_args()
    from halfstep.fleet.train import train

    train()
