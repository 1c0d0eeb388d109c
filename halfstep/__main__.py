"""`halfstep`, or in a clone `python -m halfstep`: one command for everything that is not a stage of the pipeline."""

from __future__ import annotations

import importlib
import sys

import click

# The programs, with what they do. A program is imported when it is called: `--help` takes no libraries.
PROGRAMS = {
    "advise": ("halfstep.advise.__main__", "List what the reasons advise, or try it as DVC experiments."),
    "audit": ("halfstep.audit.__main__", "Show what stands in a model, without a training."),
    "fleet": ("halfstep.fleet.__main__", "Train and measure on the machines of a Ray cluster."),
    "params": ("halfstep.params.__main__", "Print the table of all parameters."),
    "report": ("halfstep.compare.report.__main__", "Print any comparison.json, or write its page."),
    "trace": ("halfstep.profile.trace.__main__", "Print a TensorFlow profiler trace, or what differs between two."),
    "ui": ("halfstep.tracking.__main__", "Open MLflow's page on the runs of this folder."),
}


@click.group(help=f"{__doc__}\n\nThe pipeline itself is `dvc repro`.")
def main() -> None:
    """The programs; each has its own `--help`."""


def _add(name: str, module: str, text: str) -> None:
    @main.command(name, help=text, add_help_option=False, context_settings={"ignore_unknown_options": True})
    @click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
    def program(arguments: tuple[str, ...]) -> None:
        sys.argv = [f"halfstep {name}", *arguments]
        sys.exit(importlib.import_module(module).main())


for _name, _program in PROGRAMS.items():
    _add(_name, *_program)

if __name__ == "__main__":
    main(prog_name="halfstep")
