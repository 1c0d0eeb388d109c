"""`python -m stages.train --variant float32 --seed 0`: trains one variant with one seed."""

from __future__ import annotations

from halfstep.system.supervision import supervise

supervise(__name__)  # before anything large is imported

import argparse
import importlib
import os

from halfstep.cli import cli_entry, ended_by_ctrl_c, run
from halfstep.errors import ParameterError
from halfstep.inputs.snapshot import Snapshot
from halfstep.params import loading
from halfstep.results.task import left_out, resolved
from halfstep.system.fork_server import start_server
from halfstep.system.imports import quick_imports
from halfstep.system.locking import stage_lock
from halfstep.system.telling import never_silent
from halfstep.train.request import PROGRAM


@cli_entry
def main() -> None:
    """Reads the parameters, sets the environment variables that TensorFlow reads at its import, and trains.

    With `train.epochs: 0`, or `trained: false` of the variant, nothing is trained, and TensorFlow is not imported.
    """
    arguments = _arguments()
    inputs = Snapshot("train", variant=arguments.variant, seed=str(arguments.seed))
    settings = loading.load()
    if arguments.variant not in settings.variants:
        known = ", ".join(settings.variants)
        raise ParameterError(f"--variant is '{arguments.variant}'; allowed are the entries of variants: {known}")
    entry = settings.variants[arguments.variant]
    os.environ.update(entry.variables)
    settings = resolved(settings)
    name = f"{arguments.variant}-{arguments.seed}"
    with stage_lock(f"train@{name}"), never_silent(f"train {arguments.variant} seed {arguments.seed}"):
        with ended_by_ctrl_c(), quick_imports():
            if reason := left_out(arguments.variant):
                from halfstep.train.not_trained import run_failed

                run_failed(settings, arguments.variant, arguments.seed, reason, inputs)
                return
            if settings.train.epochs and entry.trained:
                if settings.task.script is not None or entry.python is not None:
                    start_server(entry.variables, PROGRAM, entry.python)  # it imports TensorFlow meanwhile
                else:
                    importlib.import_module(PROGRAM)  # here, where Ctrl-C ends an import at once
                from halfstep.train.stage import run_stage
            else:
                from halfstep.train.not_trained import run_stage

        run_stage(settings, arguments.variant, arguments.seed, inputs)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m stages.train", description=__doc__)
    parser.add_argument("--variant", required=True, help="an entry of `variants`")
    parser.add_argument("--seed", required=True, type=int)
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(run(main))
