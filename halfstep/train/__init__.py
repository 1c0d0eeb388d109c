"""Trains one variant with one seed, and tests it."""
