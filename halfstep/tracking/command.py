"""`halfstep ui`: MLflow's page on the runs of this checkout; Ctrl-C ends it."""

from __future__ import annotations

import argparse
import os
import socket
import sys

from halfstep.cli import cli_entry
from halfstep.errors import TrackingError, without_password
from halfstep.params import loading
from halfstep.tracking import store

_HOST = "127.0.0.1"
# No telemetry, no jobs, and no pickles: whoever can write to the store could run code otherwise.
VARIABLES = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
}


@cli_entry
def main() -> None:
    """Entry point: prints the address, and becomes MLflow's server.

    Raises:
        TrackingError: there is no run yet, or the port is taken.
    """
    parser = argparse.ArgumentParser(prog="halfstep ui", description=__doc__)
    parser.add_argument("--port", type=int, default=5000, help="of 127.0.0.1; default: %(default)s")
    port = parser.parse_args().port
    tracking = loading.load().tracking
    uri = store.resolve_uri(tracking)
    if (path := store.sqlite_path(uri)) is None:
        print(f"the runs are on the server {without_password(uri)}, in the experiment {tracking.experiment}")
        return
    experiment = store.experiment_id(path, tracking.experiment)
    if experiment is None:
        raise TrackingError(f"{path} has no experiment {tracking.experiment}: run `dvc repro` first")
    _require_free(port)
    print(f"http://{_HOST}:{port}/#/experiments/{experiment}/runs?workflowType=machine_learning  (Ctrl-C ends it)")
    sys.stdout.flush()
    options = [f"--host={_HOST}", f"--port={port}", "--workers=1"]
    places = [f"--backend-store-uri={uri}", f"--artifacts-destination={store.artifact_folder(path)}"]
    command = [sys.executable, "-m", "mlflow", "server", *options, *places]
    os.execve(sys.executable, command, os.environ | VARIABLES)  # noqa: S606  no shell is wanted


def _require_free(port: int) -> None:
    with socket.socket() as test_socket:
        test_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server does
        try:
            test_socket.bind((_HOST, port))
        except (OSError, OverflowError) as error:
            raise TrackingError(f"--port {port} cannot be used ({error}): choose another, such as 5001") from error
