"""Measures all variants in interleaved rounds, traces them, and computes metrics from times and traces."""
