"""The modules that `python -m` runs: a page for each stage, and the programs of the library."""

from __future__ import annotations

STAGES = ("environment", "prepare", "train", "profile", "serve", "compare")


def module_of(name: str) -> str:
    """Such as `stages.train` for `train`, and `halfstep.fleet` for `fleet`."""
    return f"stages.{name}" if name in STAGES else f"halfstep.{name}"
