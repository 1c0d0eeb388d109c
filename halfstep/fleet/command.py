"""`python -m halfstep fleet train|profile|report`: uses the machines of a Ray cluster; see docs/fleet.md."""

from __future__ import annotations

import argparse
import importlib

from halfstep.cli import cli_entry

_COMMANDS = {
    "train": "trains what is missing on the nodes; `dvc repro --pull` brings it home",
    "profile": "measures each kind of machine, alone",
    "report": "says which precision is faster on which machine",
}


@cli_entry
def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="halfstep fleet", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, text in _COMMANDS.items():
        commands.add_parser(name, help=text)
    name = parser.parse_args().command
    getattr(importlib.import_module(f"halfstep.fleet.{name}"), name)()
