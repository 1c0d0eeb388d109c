from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

from halfstep.profile.machine_load import OtherLoad, _own_busy_s, measuring_users

BUSY = "import time\nend = time.monotonic() + 3\nwhile time.monotonic() < end: pass"


def test_load_of_another_program_is_measured() -> None:
    # started by a shell that ends immediately, so that it is not a child of this process
    subprocess.run(["sh", "-c", '"$0" -c "$1" >/dev/null 2>&1 &', sys.executable, BUSY], check=True)
    load = OtherLoad()
    with load.counted():
        time.sleep(1.5)
    cores = load.cores()
    assert cores is not None
    assert cores > 0.3
    (line,) = load.warnings(0.05)
    assert line.startswith(f"Other programs used {cores:.2f} of ")
    more_than_there_are = (psutil.cpu_count() or 1) + 1.0  # the tests beside this one are other programs, too
    assert list(load.warnings(more_than_there_are)) == []


def test_load_of_an_earlier_session_counts() -> None:
    assert OtherLoad(seconds=(10.0, 6.0)).cores() == 0.6
    load = OtherLoad(seconds=(10.0, 6.0))
    with load.counted():
        pass
    span_s, other_s = load.seconds
    assert span_s > 10
    assert other_s >= 6
    assert load.cores() is not None


@pytest.fixture
def start_as() -> Iterator[Callable[..., None]]:
    """Starts a process of a user that has these arguments and waits. Only root may do so."""
    started = []

    def start(user: str | None, *arguments: str) -> None:
        try:
            process = subprocess.Popen(["/bin/sh", "-c", "echo; read line", *arguments], user=user, stdin=-1, stdout=-1)
        except (PermissionError, KeyError) as error:
            pytest.skip(f"cannot start a process of {user} ({error})")
        started.append(process)
        assert process.stdout is not None
        process.stdout.readline()

    yield start
    for process in started:
        process.communicate(b"\n")


def test_measurement_of_another_user_is_named(start_as: Callable[..., None]) -> None:
    load = OtherLoad()
    with load.counted():
        start_as("nobody", "python", "-m", "stages.profile")
    (line,) = load.warnings(1.0)
    assert line.startswith("user nobody also ran `python -m stages.profile` on this machine")


def test_only_measurements_of_others_are_named(start_as: Callable[..., None]) -> None:
    start_as(None, "python", "-m", "stages.profile")
    start_as("nobody", "python", "-m", "halfstep", "trace")
    start_as("nobody", "stages.profile", "-m")
    assert measuring_users() == set()


def test_own_load_includes_child_processes() -> None:
    before_s = _own_busy_s()
    child = subprocess.Popen([sys.executable, "-c", BUSY])
    started_s = time.process_time()
    while time.process_time() - started_s < 1:
        pass
    own_s, of_child_s = _own_busy_s() - before_s, psutil.Process(child.pid).cpu_times().user
    child.kill()
    child.wait()
    assert own_s >= 0.9 + 0.9 * of_child_s
    assert of_child_s > 0.1
