"""`python -m stages.fleet train|profile|report`: uses the machines of a Ray cluster; see docs/fleet.md."""

from __future__ import annotations

import argparse

from stages.cli import cli_entry


@cli_entry
def main() -> None:
    """Entry point."""
    _COMMANDS[_arguments().command]()


def _train() -> None:
    from stages.fleet.train import train

    train()


def _profile() -> None:
    from stages.fleet.profile import profile

    profile()


def _report() -> None:
    from stages.fleet.report import report

    report()


_COMMANDS = {"train": _train, "profile": _profile, "report": _report}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m stages.fleet", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("train", help="trains what is missing on the nodes; `dvc repro --pull` brings it home")
    commands.add_parser("profile", help="measures each kind of machine, alone")
    commands.add_parser("report", help="says which precision is faster on which machine")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
