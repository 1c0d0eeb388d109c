"""`python -m stages.train --variant float32 --seed 0`: trains one variant with one seed."""

from __future__ import annotations

import argparse
import os

from stages import params
from stages.errors import ParameterError, cli_entry, ended_by_ctrl_c
from stages.locking import stage_lock


@cli_entry
def main() -> None:
    """Reads the parameters, sets the environment variables that TensorFlow reads at its import, and trains."""
    arguments = _arguments()
    settings = params.load()
    if arguments.variant not in settings.variants:
        known = ", ".join(settings.variants)
        raise ParameterError(f"--variant is '{arguments.variant}'; allowed are the entries of variants: {known}")
    os.environ.update(settings.variants[arguments.variant].variables)
    with stage_lock(f"train@{arguments.variant}-{arguments.seed}"):
        with ended_by_ctrl_c():
            from stages.train.stage import run_stage  # imports TensorFlow

        run_stage(settings, arguments.variant, arguments.seed)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m stages.train", description=__doc__)
    parser.add_argument("--variant", required=True, help="an entry of `variants`")
    parser.add_argument("--seed", required=True, type=int)
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
