"""`python -m tools.benchmarks.tracking [EPOCHS]`: what it costs to log an epoch to each kind of tracking store.

Needs the services that `tests/services` starts. Prints, for each store, n, the median and the 95th percentile of one
call with six metrics through halfstep's own tracker, and the time to open a run.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

from stages import files
from stages.machine.fingerprint import fingerprint
from stages.params import Params
from stages.tracking import run_logging
from stages.tracking.tracker import Tracker
from tests.services import parts

EPOCH = {"loss": 1.0, "accuracy": 0.5, "val_loss": 1.0, "val_accuracy": 0.5, "learning_rate": 0.1, "epoch_time_s": 1.0}
WARM_UP = 5


def measure(store: str, uri: str, epochs: int) -> None:
    """Logs epochs to a store, and prints what they cost."""
    params = Params.model_validate({"tracking": {"uri": uri, "experiment": f"timing {time.time()}"}})
    started_s = time.perf_counter()
    tracker = Tracker(params.tracking)
    with tracker.run(run_logging.training("float32", 0), params) as run:
        opened_s = time.perf_counter() - started_s
        times_ms = []
        for epoch in range(WARM_UP + epochs):
            started_s = time.perf_counter()
            run.metrics(EPOCH, step=epoch)
            times_ms.append((time.perf_counter() - started_s) * 1e3)
        assert run.logged_steps("loss") == set(range(WARM_UP + epochs))
    times_ms = times_ms[WARM_UP:]
    middle, high = np.percentile(times_ms, [50, 95])
    print(f"{store:45} n {epochs}, median {middle:6.1f} ms, p95 {high:6.1f} ms; run opened in {opened_s:.2f} s")


@contextmanager
def server(folder: Path, database_port: int, cache_s: int) -> Iterator[str]:
    """The tracking server of `deploy/`. Yields its address."""
    folder.mkdir()
    started = parts.tracking_server(folder, database_port, "http://127.0.0.1:9", cache_s=cache_s)
    started.launch()
    try:
        started.wait()
        yield started.health.removesuffix("/health")
    finally:
        started.kill()


def main() -> None:
    """Measures all stores."""
    epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        os.chdir(folder)
        files.write_json(files.ENVIRONMENT_FILE, fingerprint())
        measure("SQLite", f"sqlite:///{folder}/mlflow.db", epochs)
        port = stack.enter_context(parts.postgres())
        os.environ |= {"MLFLOW_TRACKING_USERNAME": "admin"}
        os.environ |= {"MLFLOW_TRACKING_PASSWORD": parts.SECRETS["MLFLOW_ADMIN_PASSWORD"]}
        for name, cache_s in (("with the cache of passwords", 60), ("without it", 0)):
            with server(folder / f"cache{cache_s}", port, cache_s) as uri:
                measure(f"MLflow server, basic-auth, {name}", uri, epochs)
        os.environ |= {"PGPASSWORD": parts.SECRETS["POSTGRES_PASSWORD"]}
        measure("PostgreSQL, directly", f"postgresql://mlflow@127.0.0.1:{port}/mlflow", epochs)


if __name__ == "__main__":
    main()
