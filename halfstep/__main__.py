"""`halfstep`: one command for everything that is not a stage of the pipeline."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

import click

# The programs, with what they do. A program is imported when it is called: `--help` takes no libraries.
PROGRAMS = {
    "advise": ("halfstep.advise.command", "List what the reasons advise, each change as a line to paste."),
    "fleet": ("halfstep.fleet.command", "Train on the machines of a Ray cluster."),
    "init": ("halfstep.init", "Add the pipeline to your own repository, for `dvc repro`."),
    "judge": ("halfstep.judging", "Judge a script, a function or pictures, in any folder."),
    "params": ("halfstep.params.command", "Print the table of all parameters."),
    "report": ("halfstep.compare.report.command", "Print any comparison.json, or write its page."),
    "serve-bench": ("halfstep.serve.bench", "Time a model file with its runtime, without TensorFlow."),
    "trace": ("halfstep.profile.trace.command", "Print a TensorFlow profiler trace as JSON."),
    "ui": ("halfstep.tracking.command", "Open MLflow's page on the runs of this folder."),
}

_WITH_GATE = ("judge",)  # it ends with 1 where it has answered, and the answer does not pass
_COULD_NOT = 2
_OF_RESULTS = ("advise", "report", "ui")  # where `judge` has worked, they work in its workspace


@click.group(help=f"{__doc__}\n\nThe pipeline itself is `dvc repro`.")
@click.version_option(package_name="halfstep")
def main() -> None:
    """The programs; each has its own `--help`."""


class _Program(click.Command):
    """A program that reads its own arguments, `--` and what follows it included."""

    def __init__(self, name: str, module: str, text: str) -> None:
        super().__init__(name, help=text, add_help_option=False)
        self._module = module

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.args = args
        return args

    def invoke(self, ctx: click.Context) -> None:
        sys.argv = [f"halfstep {self.name}", *ctx.args]
        from halfstep.system.files import JUDGE  # the programs need it, `--help` does not

        if self.name in _OF_RESULTS and not Path("params.yaml").exists() and (JUDGE / "params.yaml").exists():
            os.chdir(JUDGE)
        status = importlib.import_module(self._module).main()
        sys.exit(_COULD_NOT if status == 1 and self.name not in _WITH_GATE else status)


for _name, (_module, _text) in PROGRAMS.items():
    main.add_command(_Program(_name, _module, _text))

if __name__ == "__main__":
    main(prog_name="halfstep")
