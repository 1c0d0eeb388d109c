"""The settings of an entry are in force in the process that times it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from halfstep.params.schema import ModelParams, TaskParams, TrainParams, Variant
from halfstep.profile.records import ArmSettings, FirstStep
from halfstep.profile.worker_process import WorkerProcess
from halfstep.system.fork_server import stop_servers
from halfstep.tasks.trial import Trial


@pytest.fixture(scope="module", autouse=True)
def servers() -> Iterator[None]:
    """Interpreters that the tests start beside `measure`, which ends its own."""
    yield
    stop_servers()


def test_worker_has_the_settings_of_its_entry(folder: Path) -> None:
    """They are those in force, as the worker finds them, and not what the entry asks for."""
    entry = Variant(policy="float32", threads=1, cache_input=True, prefetch_to_device=True)
    arm = Trial(TaskParams(), ModelParams(), TrainParams(batch_size=16), entry, seed=0)
    with closing(WorkerProcess("float32", arm)) as worker:
        settings = worker.call(ArmSettings, "settings").in_force
        worker.call(FirstStep, "warm_up", 2)
        assert worker.call(float, "train_round", 3) > 0
    assert (settings.batch_size, settings.threads, settings.threads_between) == (16, 1, 1)
    assert (settings.cache_input, settings.prefetch_to_device) == (True, False)  # there is no GPU
