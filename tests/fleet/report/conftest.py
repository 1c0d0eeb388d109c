"""Tests here work on copies of a complete small `data/`, which is written once."""

from tests.small_study import comparison, complete_data, project

__all__ = ["comparison", "complete_data", "project"]
