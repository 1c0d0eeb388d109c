"""What a stage tells the program that started it, apart from what it prints for people: lines of JSON."""

from __future__ import annotations

import json
import os

ASKED = {"HALFSTEP_TELL": "1"}  # in the environment of a stage that should tell
_KEY = "halfstep"


def tell(text: str) -> None:
    """Tells how far the stage is, in a few words; does nothing where no program asked."""
    if ASKED.items() <= os.environ.items():
        print(json.dumps({_KEY: text}), flush=True)


def say(name: str, text: str) -> None:
    """Prints and tells how far a run is."""
    print(f"{name}: {text}", flush=True)
    tell(text)


def told(line: str) -> str | None:
    """What a line of a stage's output tells; None if it is meant for people."""
    try:
        message = json.loads(line) if line.startswith(f'{{"{_KEY}": ') else None
    except ValueError:
        return None
    return str(message[_KEY]) if isinstance(message, dict) else None
