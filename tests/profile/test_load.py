from __future__ import annotations

import subprocess
import sys
import time

import psutil

from stages.profile.load import OtherLoad, _own_busy_s

BUSY = "import time\nend = time.monotonic() + 3\nwhile time.monotonic() < end: pass"


def test_another_programs_load_is_counted() -> None:
    # started by a shell that ends at once, so that it is nobody's child
    subprocess.run(["sh", "-c", '"$0" -c "$1" >/dev/null 2>&1 &', sys.executable, BUSY], check=True)
    load = OtherLoad()
    with load.counted():
        time.sleep(1.5)
    cores = load.cores()
    assert cores is not None
    assert cores > 0.3
    (line,) = load.warnings(0.05)
    assert line.startswith(f"other programs kept {cores:.2f} of ")
    assert list(load.warnings(1.0)) == []


def test_what_this_program_and_its_workers_do_is_their_own() -> None:
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


def test_nothing_is_known_before_anything_was_counted() -> None:
    assert OtherLoad().cores() is None
    assert list(OtherLoad().warnings(0.05)) == []
