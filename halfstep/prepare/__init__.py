"""Prepares the data of the task."""
