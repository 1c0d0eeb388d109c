"""What fork servers import beforehand starts no thread of TensorFlow.

A thread that begins while a process is forked may hold a lock, which nobody in the new process would ever release.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from halfstep.prepare import trying
from halfstep.system import fork_server

MODULES = [fork_server.PRELOADED, trying._PROGRAM]
THREADS = """
import importlib, sys
from pathlib import Path
importlib.import_module(sys.argv[1])
print(*(path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")))
"""


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs Linux")
@pytest.mark.parametrize("module", MODULES)
def test_module_that_is_imported_before_a_fork_starts_no_thread_of_tensorflow(module: str, root: Path) -> None:
    process = subprocess.run(
        [sys.executable, "-c", THREADS, module], cwd=root, capture_output=True, text=True, check=True
    )
    assert [name for name in process.stdout.split() if name.startswith(("tf_", "tf-"))] == []
