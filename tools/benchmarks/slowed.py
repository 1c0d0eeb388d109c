"""Workers whose training steps are slower by a known share."""

from __future__ import annotations

import time
from dataclasses import dataclass
from multiprocessing.connection import Connection

from stages.profile.records import ArmConfig


@dataclass(frozen=True)
class SlowedConfig(ArmConfig):
    """An arm whose training steps are slower by `slower_by`: 0.05 is 5 %."""

    slower_by: float = 0.0


def serve(connection: Connection, config: ArmConfig) -> None:
    """What a worker process runs."""
    from stages.profile import worker

    class SlowedWorker(worker.Worker):
        """A worker that busy-waits at the end of each timed part."""

        def _train(self, steps: int, *, mark: bool = False, wait: bool = False) -> None:
            started_s = time.perf_counter()
            super()._train(steps, mark=mark, wait=wait)
            now_s = time.perf_counter()
            ends_s = now_s + getattr(config, "slower_by", 0.0) * (now_s - started_s)
            while time.perf_counter() < ends_s:  # sleeping is not precise enough
                pass

    worker.serve(connection, SlowedWorker, config)
