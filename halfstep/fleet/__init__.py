"""Trains and measures on the machines of a Ray cluster. DVC's remote and run cache carry the results home."""
