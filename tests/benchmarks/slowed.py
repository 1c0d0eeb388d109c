"""Workers whose training steps take longer by a known share: what a measurement has to find."""

from __future__ import annotations

import time
from dataclasses import dataclass
from multiprocessing.connection import Connection

from stages.profile.records import Task


@dataclass(frozen=True)
class SlowedTask(Task):
    """A task whose every turn takes longer: 0.05 is 5 %."""

    slower_by: float = 0.0


def serve(line: Connection, task: Task) -> None:
    """What a worker's process runs."""
    import stages.quiet  # noqa: F401  before TensorFlow
    from stages.profile import worker

    class SlowedWorker(worker.Worker):
        """A worker that idles at the end of each turn, the clock still running."""

        def _train(self, steps: int, *, mark: bool = False) -> None:
            started_s = time.perf_counter()
            super()._train(steps, mark=mark)
            now_s = time.perf_counter()
            ends_s = now_s + getattr(task, "slower_by", 0.0) * (now_s - started_s)
            while time.perf_counter() < ends_s:  # sleeping is not exact enough
                pass

    worker.serve(line, SlowedWorker, task)
