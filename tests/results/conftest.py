"""Tests here work on copies of a complete small `data/`, which is written once."""

from tests.small_study import complete_data, project

__all__ = ["complete_data", "project"]
