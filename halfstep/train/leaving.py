"""How the process of a training ends. Does not import TensorFlow."""

from __future__ import annotations

import sys


def is_left() -> bool:
    """Whether to leave by `os._exit`: a normal exit would go on with the user's script."""
    script = sys.modules.get("halfstep.tasks.script")  # it imports TensorFlow
    return script is not None and script.is_left()
