"""`python -m stages.train --variant float32 --seed 0`: trains one variant with one seed."""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from typing import NoReturn

from stages import params
from stages.distribution.cluster import from_environment, other_hosts_connected
from stages.errors import ParameterError, cli_entry, ended_by_ctrl_c
from stages.imports import quick_imports
from stages.locking import stage_lock

THREADS_S = 5.0  # for threads that end by themselves


@cli_entry
def main() -> None:
    """Reads the parameters, sets the environment variables that TensorFlow reads at its import, and trains.

    With `train.epochs: 0` nothing is trained, and TensorFlow is not imported.
    """
    arguments = _arguments()
    settings = params.load()
    if arguments.variant not in settings.variants:
        known = ", ".join(settings.variants)
        raise ParameterError(f"--variant is '{arguments.variant}'; allowed are the entries of variants: {known}")
    os.environ.update(settings.variants[arguments.variant].variables)
    cluster = from_environment(settings.train.replicas)
    if cluster:
        os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"  # the loss of a host gives one line of this stage, and many of gRPC
    if cluster and not cluster.is_chief:
        _follow(settings, arguments.variant, arguments.seed)
        return
    with stage_lock(f"train@{arguments.variant}-{arguments.seed}"):
        with ended_by_ctrl_c(), quick_imports():
            if settings.train.epochs:
                from stages.train.stage import run_stage  # imports TensorFlow
            else:
                from stages.train.not_trained import run_stage

        run_stage(settings, arguments.variant, arguments.seed)


def _follow(settings: params.Params, variant: str, seed: int) -> None:
    """Trains with the chief on another host, if there is a training."""
    if settings.train.epochs:
        with ended_by_ctrl_c(), quick_imports():
            from stages.train.hosts import follow  # imports TensorFlow

        follow(settings, variant, seed)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m stages.train", description=__doc__)
    parser.add_argument("--variant", required=True, help="an entry of `variants`")
    parser.add_argument("--seed", required=True, type=int)
    return parser.parse_args()


def run() -> int:
    """Runs `main`, and makes sure that the process ends, also if the user's own model has started threads.

    Everything is written when `main` ends. Python then waits for all threads that are not daemons.

    Returns:
        The exit status.
    """
    status = 1
    try:
        status = main()
    except SystemExit as error:  # after SIGTERM
        status = error.code if isinstance(error.code, int) else 1
    finally:
        threading.Thread(target=_end_without_threads, args=(status,), daemon=True).start()
    if other_hosts_connected():
        _end_now(status)
    return status


def _end_without_threads(status: int) -> None:
    time.sleep(THREADS_S)
    others = [thread for thread in threading.enumerate() if thread is not threading.main_thread()]
    if names := [repr(thread.name) for thread in others if not thread.daemon]:
        print(f"train: does not wait for threads that the model started: {', '.join(names)}", file=sys.stderr)
        _end_now(status)


def _end_now(status: int) -> NoReturn:
    sys.stderr.flush()
    sys.stdout.flush()
    os._exit(status)


if __name__ == "__main__":
    raise SystemExit(run())
