"""Programs for developers: benchmarks, and the acceptance of a machine with a GPU."""
